"""Writes all golden files of tests/golden that PyTorch makes:  python3 tools/make_golden.py

Needs a Python with PyTorch; the tests need neither, they read the committed files.
"""
import pathlib
import subprocess
import sys

tools = pathlib.Path(__file__).resolve().parent
golden = tools.parent / "tests" / "golden"
for script, name in (("golden_torch.py", "ops.lua"), ("golden_losses.py", "losses.lua"), ("golden_layers.py", "layers.lua"),
                     ("golden_optim.py", "optim.lua")):
    text = subprocess.run([sys.executable, "-W", "ignore", tools / script], check=True, capture_output=True).stdout
    (golden / name).write_bytes(text)
    print(golden / name, len(text), "bytes")
