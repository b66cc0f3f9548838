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
