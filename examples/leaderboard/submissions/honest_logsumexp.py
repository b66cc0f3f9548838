import torch


def softmax(x):
    return torch.exp(x.double() - torch.logsumexp(x.double(), -1, keepdim=True)).to(x.dtype)
