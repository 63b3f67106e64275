"""From files to proteins: readers, the policy, and the store that keeps what was read."""
