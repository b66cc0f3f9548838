"""The command that writes a working example project: python -m farm.init DIR"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

#: Exit codes.
OK, BAD_INPUT = 0, 2

CONFIG = """\
# Your own kernels, judged: python -m farm.launch {folder}/farm.yaml
# Every key is explained in the README's section "Your own kernels".
catalogs:
  - name: user
    samples: 8
    distributions: [own, adversarial]  # own: the values that a kernel asks for; adversarial: large offsets, ties, …
    modules: [kernels.py]              # every function with @tasks.op in it
    kernels:
      - name: rms_norm
        kernel: kernels.py:rms_norm
        reference: rms_norm_reference.py   # a script; file.py:function is a function of NumPy arrays
        dims: {{batch: [1, 4], width: [7, 64, 1025]}}
        inputs: {{x: [batch, width], weight: [width]}}
        kwargs: {{eps: 1.0e-6}}
        dtypes: [float32, bfloat16]
        class: normalisation
        invariants: [shape_preserved, no_nan]
backends: [torch-cpu]
"""

KERNELS = '''\
"""Two kernels: one declared here, one in farm.yaml."""
import numpy as np
import tasks
import torch


def softmax_reference(x):
    """What is right, on float64 NumPy arrays."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@tasks.op(
    reference=softmax_reference,
    dims={"rows": [1, 5, 32], "columns": [1, 31, 129, 1000]},
    inputs={"x": ["rows", "columns"]},
    dtypes=["float32", "float16"],
    op_class="normalisation",
    invariants=["sums_to_one", "non_negative", "shape_preserved"],
)
def softmax(x):
    """Softmax over the last axis in blocks of 128 with a running maximum and sum."""
    top = torch.full(x.shape[:-1], -torch.inf, device=x.device)
    total = torch.zeros(x.shape[:-1], device=x.device)
    for block in x.float().split(128, dim=-1):
        new = torch.maximum(top, block.amax(-1))
        # Leave out the rescaling (the factor before the sum) and see what the farm says.
        total = torch.exp(top - new) * total + torch.exp(block - new[..., None]).sum(-1)
        top = new
    return (torch.exp(x.float() - top[..., None]) / total[..., None]).to(x.dtype)


def rms_norm(x, weight, eps):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)
'''

SCRIPT = '''\
"""Reference of rms_norm: one request as JSON on stdin, the outputs as JSON on stdout."""
import base64
import json
import sys

import numpy as np


def decode(tensor):
    data = base64.b64decode(tensor["data"])
    return np.frombuffer(data, np.dtype(tensor["dtype"])).reshape(tensor["shape"])


def encode(array):
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": data}


request = json.load(sys.stdin)
x, weight = decode(request["inputs"]["x"]), decode(request["inputs"]["weight"])
scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + request["kwargs"]["eps"])
json.dump({"outputs": {"y": encode(x * scale * weight)}}, sys.stdout)
'''

TEST = '''\
"""The kernels under the farm's judgement, as a test: pytest {folder}"""
from pathlib import Path

from farm import lake, launch

HERE = Path(__file__).parent


def test_kernels(tmp_path):
    code = launch.main([str(HERE / "farm.yaml"), "--inline", "--samples", "3", "--results", str(tmp_path)])
    rows = lake.read(tmp_path)
    bad = rows[~rows["status"].isin(["pass", "imprecise"])]
    assert code == launch.OK, bad[["case_id", "status", "kind", "error_units", "error"]].to_string()
    assert set(rows["op"]) == {{"user:softmax", "user:rms_norm"}}
'''


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 written, 2 a directory that cannot be had or is not empty."""
    parser = argparse.ArgumentParser(
        prog="python -m farm.init",
        description="Write an example project: a config, two kernels, a reference function, "
        "a reference script and a test.",
    )
    parser.add_argument("directory", metavar="DIR", help="a new or empty directory")
    folder = Path(parser.parse_args(argv).directory)
    try:
        write(folder)
    except OSError as error:
        print(f"error: {error.filename or folder}: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    print(
        f"{folder}: farm.yaml, kernels.py, rms_norm_reference.py, test_kernels.py; run\n"
        f"  python -m farm.launch {folder}/farm.yaml\n  pytest {folder}"
    )
    return OK


def write(folder: Path) -> None:
    """Write the project. Raises OSError, also for a directory that has anything in it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(p.name for p in folder.iterdir())
    if found:
        raise OSError(
            f"the directory is not empty ({', '.join(found[:3])}{' …' if len(found) > 3 else ''}): name a new one"
        )
    files = {
        "farm.yaml": CONFIG.format(folder=folder),
        "kernels.py": KERNELS,
        "rms_norm_reference.py": SCRIPT,
        "test_kernels.py": TEST.format(folder=folder),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
