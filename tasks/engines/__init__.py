"""Engines: what serves a decoder, one file each; `tasks.model.engine` is what each can be asked."""
