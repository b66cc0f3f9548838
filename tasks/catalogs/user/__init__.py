"""The parts of the `user` catalog: its definitions, their sources, samples, references and promises."""
