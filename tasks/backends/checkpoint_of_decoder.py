"""Writes a decoder of the catalog `engine` as a checkpoint, for a server that is to be asked through its endpoint.

``python -m tasks.backends.checkpoint_of_decoder FOLDER``, or ``FILE.gguf`` for llama.cpp's server, which takes the
package gguf; a config's catalog names the same decoder, dtype and seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.catalogs.engine import catalog
from tasks.engines import llama_cpp
from tasks.engines.checkpoint import list_token_names, save_checkpoint
from tasks.model import Unsupported, get_numpy_dtype
from tasks.model.engine import ServedModel


def make_served_decoder(decoder: str, dtype: str, seed: int = 0) -> ServedModel:
    """A decoder with the weights that the catalog's samples of a seed have."""
    shape = catalog.DECODERS[decoder]
    drawn = catalog.draw_decoder_weights(shape, catalog.derive_weights_seed(decoder, seed))
    return ServedModel(shape, dtype, {name: x.astype(get_numpy_dtype(dtype)) for name, x in drawn.items()})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.backends.checkpoint_of_decoder", description=__doc__)
    parser.add_argument("path", type=Path, metavar="FOLDER|FILE.gguf")
    parser.add_argument("--decoder", choices=sorted(catalog.DECODERS), default="llama")
    parser.add_argument("--dtype", choices=catalog.DTYPES, default="float32")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model = make_served_decoder(given.decoder, given.dtype, given.seed)
    try:
        if given.path.suffix == ".gguf":
            llama_cpp.save_gguf(model, given.path, list_token_names(model.decoder.vocabulary))
        else:
            save_checkpoint(model, given.path)
    except ModuleNotFoundError as error:
        parser.error(f"{given.path}: {error.name} is not installed here; pip install {error.name}")
    except (Unsupported, OSError) as error:
        parser.error(f"{given.path}: the decoder {given.decoder} cannot be written there: {error}")
    print(f"{given.path}: the decoder {given.decoder} in {given.dtype}")


if __name__ == "__main__":
    main()
