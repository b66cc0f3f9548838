"""The catalog "nodes": single nodes of models with the tensors that came to them, as `farm init harvest` wrote them."""
