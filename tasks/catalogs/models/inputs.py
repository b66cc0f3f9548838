"""Inputs of models: what they were made for (photos, drawn text, sentences, voice, music, files), and seeded noise beside it."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.catalogs.models import wheels
from tasks.catalogs.models.wheels import PinnedWheel

#: Two photographs of a temple and of a flower, 640 × 427.
PHOTOS = PinnedWheel(
    "scikit_learn-1.7.2-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "89877e19a80c7b11a2891a27c21c4894fb18e2c2e077815bcade10d34287b20d",
    "CC-BY-2.0",
)

Arrays = dict[str, np.ndarray]
#: Inputs by name, of a real kind: the number of the sample, and where files are kept.
Real = Callable[[int, Path], Arrays]
#: Inputs by name from a generator: the seeded ones.
Seeded = Callable[[np.random.Generator], Arrays]


@dataclass(frozen=True)
class ModelInputs:
    """Where a model's inputs come from: ``kinds`` real samples, the second and what follows after them seeded ones."""

    real: Real
    seeded: Seeded
    kinds: int = 1

    def of(self, index: int, seed: int, name: str, cache: Path) -> Arrays:
        """The inputs of a sample. A run's seed other than 0 gives other seeded ones."""
        real = index - (index > 1)
        if index != 1 and real < self.kinds:
            return self.real(real, cache)
        return self.seeded(np.random.default_rng([*name.encode(), index, seed % 2**64]))


def load_photo(index: int, size: tuple[int, int], cache: Path) -> np.ndarray:
    """One of the photographs, cut to the shape of (height, width) and scaled to it: float32 of 0 … 1, (3, height,
    width)."""
    from PIL import Image

    name = ("china", "flower")[index % 2]
    with Image.open(io.BytesIO(wheels.read_wheel_file(PHOTOS, f"sklearn/datasets/images/{name}.jpg", cache))) as image:
        height, width = size
        scale = min(image.width / width, image.height / height)
        left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
        box = (left, top, left + width * scale, top + height * scale)
        pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR, box))
    return np.ascontiguousarray(np.moveaxis(pixels, 2, 0)).astype(np.float32) / np.float32(255)


def render_text_image(lines: list[str], size: tuple[int, int], points: int, turned: bool = False) -> np.ndarray:
    """Dark text drawn on a bright page: float32 of 0 … 1, (3, height, width)."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = size
    page = Image.new("RGB", (width, height), (248, 246, 238))
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(points)
    for row, text in enumerate(lines):
        pen.text((points // 4, points // 8 + row * points * 1.5), text, (24, 22, 40), font)
    page = page.rotate(180) if turned else page
    return np.ascontiguousarray(np.moveaxis(np.asarray(page), 2, 0)).astype(np.float32) / np.float32(255)


def normalise_image(image: np.ndarray, mean: tuple[float, ...], deviation: tuple[float, ...]) -> np.ndarray:
    """An image (3, H, W) with the mean and deviation of a model's training taken off, as a batch of one."""
    m, d = (np.asarray(v, np.float32).reshape(3, 1, 1) for v in (mean, deviation))
    return np.asarray((image - m) / d, np.float32)[None]


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def synthesize_voice(seconds: float, rate: int) -> np.ndarray:
    """A hummed sentence: a pulse train of 90 to 140 Hz through the resonances of vowels, with pauses; float32 of −1 …
    1.

    Resonances: Peterson and Barney, Control methods used in a study of the vowels (1952), averages of men.
    """
    vowels = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410)]
    count = int(seconds * rate)
    t = np.arange(count) / rate
    pitch = 115 + 25 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound = np.zeros(count)
    syllable = (t * 3.1).astype(int)
    for harmonic in range(1, 28):
        at = harmonic * pitch
        gain = np.zeros(count)
        for resonance in range(3):
            centre = np.array([vowels[k % len(vowels)][resonance] for k in range(syllable.max() + 1)])[syllable]
            gain += 1.0 / (1.0 + ((at - centre) / (60.0 + 30.0 * resonance)) ** 2) / (1 + resonance)
        sound += gain * np.sin(harmonic * phase) / harmonic**0.5
    sound *= np.clip(np.sin(np.pi * ((t * 3.1) % 1.0)) * 1.6 - 0.3, 0.0, 1.0)
    return np.asarray(0.7 * sound / np.abs(sound).max(), np.float32)


def synthesize_music(seconds: float, rate: int) -> np.ndarray:
    """A plucked scale with chords: decaying harmonics of notes a third of a second apart; float32 of −1 … 1."""
    t = np.arange(int(seconds * rate)) / rate
    sound = np.zeros(len(t))
    for k, chord in enumerate(((60,), (62,), (64,), (65,), (67,), (48, 55, 64), (50, 57, 65))):
        for note in chord:
            since = np.clip(t - 0.3 * k, 0.0, None)
            for harmonic in range(1, 7):
                tone = np.sin(2 * np.pi * harmonic * 440.0 * 2 ** ((note - 69) / 12) * since)
                sound += np.where(t > 0.3 * k, tone * np.exp(-3.0 * since), 0.0) / harmonic**1.5
    return np.asarray(0.8 * sound / np.abs(sound).max(), np.float32)


#: Sentences of the kind that language models embed.
SENTENCES = (
    "A kernel that is fast and wrong is not fast.",
    "The quick brown fox jumps over the lazy dog, and nobody asks in which precision.",
    "Numerical errors grow with the condition of the problem, not with the mood of the engineer.",
)


def tokenize_sentences(vocabulary: str, sentences: tuple[str, ...], length: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids, mask) of sentences as BERT's uncased WordPiece reads them, int64 (sentences, length), padded with 0.

    Devlin et al., BERT (2019): lower case without accents, split at blanks and punctuation, then the longest known
    piece.
    """
    known = {piece: number for number, piece in enumerate(vocabulary.splitlines())}
    ids, mask = np.zeros((2, len(sentences), length), np.int64)
    for row, text in enumerate(sentences):
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        spaced = "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in plain)
        found = [known["[CLS]"], *(number for word in spaced.split() for number in _split_word_pieces(word, known))]
        found = [*found[: length - 1], known["[SEP]"]]
        ids[row, : len(found)], mask[row, : len(found)] = found, 1
    return ids, mask


def _split_word_pieces(word: str, known: dict[str, int]) -> list[int]:
    found, at = [], 0
    while at < len(word):
        ends = (e for e in range(len(word), at, -1) if ("##" if at else "") + word[at:e] in known)
        end = next(ends, None)
        if end is None:
            return [known["[UNK]"]]
        found.append(known[("##" if at else "") + word[at:end]])
        at = end
    return found


def cut_file_tokens(content: bytes, size: int = 1024, padding: int = 256) -> np.ndarray:
    """The first and the last ``size`` bytes of a file without the blanks at its ends, as Magika reads them: int32 (1,
    2·size)."""
    found = np.full((1, 2 * size), padding, np.int32)
    first, last = content[: 4 * size].lstrip()[:size], content[-4 * size :].rstrip()[-size:]
    found[0, : len(first)] = np.frombuffer(first, np.uint8)
    found[0, 2 * size - len(last) :] = np.frombuffer(last, np.uint8)
    return found
