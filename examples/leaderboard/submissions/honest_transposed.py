import torch


def softmax(x):
    return torch.softmax(x.transpose(0, 1).contiguous(), 0).transpose(0, 1).contiguous()
