"""An encoder on a Hugging Face hub."""

import torch
from huggingface_hub import PyTorchModelHubMixin

import siamdiff_min


class HubEncoder(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self, name="gearnet", level="residue", size="small", preset="paper"):
        super().__init__()
        self.encoder = siamdiff_min.ENCODERS[name](level, size, preset)


encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")
model = HubEncoder(*encoder.identity)
model.encoder.load_state_dict(encoder.state_dict())
model.save_pretrained("hub")  # a folder; push_to_hub("you/name") uploads it
again = HubEncoder.from_pretrained("hub").encoder  # or "you/name"
