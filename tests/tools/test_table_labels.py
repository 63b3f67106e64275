"""Tables of labels: a case for each way in which people write them, what is read, what is refused, what is said."""

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from siamdiff_min.files import StructureError
from siamdiff_min.tools.table import labels

ROOT = Path(__file__).parents[2]

READ = {  # a table, options, the kind, and the values by name
    "columns in any order": ("\ufeffvalue\tname\r\n1\ta\r\n\r\n3\tb c\r\n", {}, "regression", {"a": 1, "b c": 3}),
    "of a lab": (
        "Protein;Datum;Tm;Bemerkung\n4bdf_A;1.2.24;0,520;gut\n4bdg_A;2.2.24;;\n4bdh_A;;1,5;ok\n",
        {"value_column": "Tm"}, "regression", {"4bdf_A": 0.52, "4bdh_A": 1.5}),
    "not measured": (
        "name;value\na;1,5\nb;n.d.\nc;#N/A\nd;NA\ne;nan\nf;\ng;N.D.\nh;\N{MINUS SIGN}2,5",
        {"missing": ["n.d."]}, "regression", {"a": 1.5, "h": -2.5}),
    "several properties": (
        "id;Tm;logS\na;60,5;\nb;;-2,1\nc;;\nd;70;-3", {"value_column": ["Tm", "logS"]}, "regression",
        {"a": [60.5, None], "b": [None, -2.1], "d": [70, -3]}),
    "a binary property beside a number": (
        "name\tx\ty\na\t1\t2\nb\t0\t5", {"value_column": ["x", "y"]}, "regression", {"a": [1, 2], "b": [0, 5]}),
    "bounds": ("name,value\na,>100\nb,<0.5\nc,≤ 2\nd,>=1e3", {}, "regression", {"a": 100, "b": 0.5, "c": 2, "d": 1e3}),
    "three decimals and fewer": ('name;value\na;1,250\nb;3\nc;0,5', {}, "regression", {"a": 1.25, "b": 3, "c": 0.5}),
    "NA may be sodium": ("name,value\na,NA\nb,MG\nc,\nd,NA", {}, "classes", {"a": "NA", "b": "MG", "d": "NA"}),
    "no class of several": ('name,value\na,"x, y"\nb,\nc,y', {}, "labels", {"a": ["x", "y"], "b": [], "c": ["y"]}),
    "numbers as names": ("name,value\na,1\nb,2\nc,1", {"kind": "classes"}, "classes", {"a": "1", "b": "2", "c": "1"}),
    "lists of numbers as names": (
        'name,value\na,"1,2"\nb,2', {"kind": "labels"}, "labels", {"a": ["1", "2"], "b": ["2"]}),
    "a title with a comma": ("name;value;T, in K\na;1;5\nb;3;6", {}, "regression", {"a": 1, "b": 3}),
    "Excel's empty cells at the end": ("name,value\na,1,,\nb,3\n", {}, "regression", {"a": 1, "b": 3}),
    "an index of pandas": (",name,value\n0,a,1\n1,b,3\n", {}, "regression", {"a": 1, "b": 3}),
    "a column `number` of whole structures": ("name,number,value\na,1,1\nb,2,3\n", {}, "regression", {"a": 1, "b": 3}),
    "0 only is no yes or no": ("name,value\na,0\nb,0", {}, "regression", {"a": 0, "b": 0}),
}  # fmt: skip
NUMBERS = "is no value for regression; .*numbers stand alone, as 0.5; --missing takes words"
DATES = ("2. Mrz", "Mar-02", "2026-03-01T00:00:00", "1.2.26")
REFUSED = {  # a table, its kind, the message
    "": (None, "no rows below the titles; expected columns name and value"),
    "name\tlabel\na\t1": (None, "expected one column 'value', there are name, label; see --name-column and --value-c"),
    "name\tvalue\na\t1\t2": (None, "row 2 has 3 columns of 2"),
    "name,value\n\n\na,1,5": (None, "row 4 has 3 columns of 2"),
    "name\tvalue\n\t1": (None, "row 2 is without a name"),
    "name\tchain\tnumber\tvalue\na\tA\tfive\t1": (None, "row 2 is without a residue number"),
    "name\tchain\tnumber\tresidue\tvalue\na\tA\t5\tQ7\t1": (None, "row 2 is of no residue that we know"),
    "name\tvalue\tsplit\na\t1\ttraining": (None, "row 2 is of no split, expected train"),
    "name\tvalue\tvalue\na\t1\t2": (None, "expected one column 'value', there are name, value, value"),
    'name\tvalue\na\t"1\nb\t2': (None, "unexpected end of data"),
    'name,value\na,"1"2': (None, "expected after"),
    "name,value\na,'" + "x" * 200_000 + "'": (None, "field larger than field limit"),
    "name,value\na,1\nb,2": ("binary", "row 3: '2' is no value for binary"),
    "name,value\na,inf\nb,2": (None, "row 2: 'inf' is no value for regression"),
    "name,value\na,\nb,NA": ("regression", "column value has no value"),
    "name,value\na,\nb,": ("classes", "column value has no value"),
    "name,value\na,1\nb,n. d.\nc,2": (None, f"row 3: 'n. d.' {NUMBERS}"),
    "name;value\na;0,52\nb;1.5": (None, "'1.5' has a decimal point, but '0,52' a decimal comma"),
    "name;value\na;1.234,5\nb;2,5": (None, f"row 2: '1.234,5' {NUMBERS}"),
    "name;value\na;1,5 ± 0,3\nb;2 ± 1": (None, f"row 2: '1,5 ± 0,3' {NUMBERS}"),
    'name,value\na,"1,250"\nb,980': (None, "is '1,250' a decimal comma.*: write all without commas"),
    "name,value\na,1\nb,1_000": (None, f"row 3: '1_000' {NUMBERS}"),
    **{f"name,value\na,1\nb,{cell}": (None, rf"row 3: '{cell}' .* \(a date\? a spreadsheet may") for cell in DATES},
    "name,value\na,30%\nb,35.5%\nc,30%": (None, f"row 2: '30%' {NUMBERS}"),
    "name,value\na,1.5 \u00b0C\nb,2 \u00b0C": (None, f"row 2: '1.5 \u00b0C' {NUMBERS}"),
    "name;value\na;3.1.1.1, 3.1.1.2\nb;2.1.1.1": (
        None,
        f"row 2: '3.1.1.1, 3.1.1.2' {NUMBERS}.*--kind classes or labels",
    ),
    '"name" "value"\n"1" "a" 5\n"2" "b" 6': (None, "expected after"),
    "name,value\na,1\nb,3.5e38": (None, "row 3: '3.5e38' is no value"),
}


def read(folder, text, **options):
    (folder / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    table = labels.read_table(folder / "t.csv", **options)
    table.faults.check()
    return table


@pytest.mark.parametrize("case", READ)
def test_a_table_is_read(tmp_path, case):
    text, options, kind, values = READ[case]
    table = read(tmp_path, text, **options)
    plain = {row.name: row.value for row in table.rows}
    if "value_column" in options and kind == "regression" and len(table.classes):
        plain = {name: [None if x != x else x for x in value] for name, value in plain.items()}
    assert (table.kind, plain) == (kind, values)
    if kind in ("classes", "labels"):
        assert table.classes == tuple(np.unique(np.hstack([*values.values()])))


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_a_table_is_refused(tmp_path, text):
    kind, reason = REFUSED[text]
    with pytest.raises(StructureError, match=rf"t\.csv: malformed table \(.*{reason}"):
        read(tmp_path, text, kind=kind)


TOLD = {  # a table, options, its values in words, what else is said
    "gaps, a column that is not read": (
        "name;batch;value\n" + "".join(f"p{i};x;{i % 4}\n" for i in range(20)) + "q;x;\n", {}, "0 to 3",
        ["columns that are not read: batch", "1 of 21 rows were not measured"]),
    "a gap in one of several columns": (
        "name,x,y\na,1,1\nb,0,\nc,0,0", {"value_column": ["x", "y"]}, "x: 1 of 3 are 1, y: 1 of 2 are 1",
        ["y: 1 of 3 rows were not measured"]),
    "names that are one number": ("name,value\na,1.1\nb,1.10\nc,1.2", {}, "1.1 to 1.2", [
        "1.1 and 1.10 are one number: --kind classes if they are names"]),
    "whole numbers": ("name,value\na,1\nb,1.0\nc,1.2", {}, "1 to 1.2", []),
    "decimal commas and bounds": ("name;value\na;>100\nb;3\nc;<0,5\nd;≤ 2\ne;-1,5", {}, "-1.5 to 100", [
        "decimal commas: <0,5 is read as 0.5", "3 bounds (>100, <0,5, ≤ 2) are read as the number behind the sign"]),
    "classes": ("name,value\na,No\nb,yes\nc,no\nd,no", {}, "3 classes: no 2, No 1, yes 1", []),
    "yes or no": ("name,value\na,1\nb,0\nc,0", {}, "1 of 3 are 1", []),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_what_a_user_is_told(tmp_path, case):
    text, options, about, notes = TOLD[case]
    table = read(tmp_path, text, **options)
    assert (table.about, table.notes) == (about, notes)


def test_classes_of_several_columns_are_refused(tmp_path):
    with pytest.raises(StructureError, match="several columns must hold numbers, no classes: x, y"):
        read(tmp_path, "name,x,y\na,u,1\nb,v,2", value_column=["x", "y"], kind="classes")


def test_all_faults_are_named_at_once_the_first_three_of_each_kind(tmp_path):
    rows = [f"p{i},x{i},train" for i in range(5)] + [",1,train", "a,1,training", "b,1"]
    with pytest.raises(StructureError) as found:
        read(tmp_path, "\n".join(["name,value,split", *rows]), kind="regression")
    said = str(found.value)
    for fault in ("row 2: 'x0'", "row 3: 'x1'", "row 4: 'x2'", "and 2 more", "row 7 is without a name"):
        assert fault in said
    assert "'x3'" not in said and "row 9 has 2 columns of 3" in said and "row 8 is of no split" in said


def test_columns_of_residues_and_families(tmp_path):
    """Also numbers as pandas writes them beside a gap."""
    text = "name,chain,number,residue,value,split,Family\na,A,52A,mse,1,val,\nb,A,-1,W,2,,\nb,B,175.0,,3,,kinase"
    assert read(tmp_path, text).rows == [
        labels.Row(2, "a", "A:52A", "M", "valid", 1.0),
        labels.Row(3, "b", "A:-1", "W", "", 2.0),
        labels.Row(4, "b", "B:175", "", "", 3.0, "kinase"),
    ]


def test_what_is_no_text(tmp_path):
    with pytest.raises(StructureError, match=r"t\.csv: not a table of text \(a spreadsheet saves one as CSV\)"):
        read(tmp_path, b"PK\3\4\0\x80\xfe")
    with pytest.raises(StructureError, match=r"nothing: .*No such file"):
        labels.read_table(tmp_path / "nothing")


@pytest.mark.parametrize("text, said", [
    (None, "t.csv: cannot be opened"), ("PK\0", "not a table of text"),
    ("name,label\na,x", "expected one column 'value'"), ("name,value\na,", "column value has no value"),
])  # fmt: skip
def test_a_wrong_table_is_named_before_torch_is_loaded(tmp_path, text, said):
    if text is not None:
        (tmp_path / "t.csv").write_text(text)
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from siamdiff_min import cli\ntry: cli.main(sys.argv[1:])\n"
    )
    script += "finally: print('torch' in sys.modules)"
    command = ["finetune", "--task", "table", "--labels", "t.csv", "--data", "nowhere"]
    ran = subprocess.run([sys.executable, "-c", script, *command], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout == "False\n" and ran.returncode == 1 and said in ran.stderr


@pytest.mark.parametrize("separator", "\t,;")
@pytest.mark.parametrize("quotes", ["none", "all", "Excel's"])
def test_every_table_that_excel_or_pandas_writes_is_read_alike(tmp_path, separator, quotes):
    """Also with spaces around cells, rows without content, line ends of Windows, and other encodings."""
    cells = [
        ["name", "value", "split"],
        ["p 1", "a, b", "train"],
        ['p"2', "ä", "val"],
        ["p3", "", "test"],
        ["", "", ""],
    ]
    style = {"none": csv.QUOTE_MINIMAL, "all": csv.QUOTE_ALL, "Excel's": csv.QUOTE_NONNUMERIC}[quotes]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, quoting=style).writerows(cells)
    text = text.getvalue()
    expected = [("p 1", ["a", "b"], "train"), ('p"2', ["ä"], "valid"), ("p3", [], "test")]
    spaced = re.sub(f"{separator}(?! )", f"{separator} ", text).replace("\r\n", " \r\n").replace('" \r', '"\r')
    variants = [text, "\ufeff" + text, text.replace("\r\n", "\n"), text.replace("\r\n", "\r"), spaced]
    for given in [*map(str.encode, variants), text.encode("utf-16"), text.encode("cp1252")]:
        rows = read(tmp_path, given, kind="labels").rows
        assert [(row.name, row.value, row.split) for row in rows] == expected
