"""Prepared cases (`PreparedSample`: form, expected leaves, terms) and their exported forms, made once and kept in packs by content: samples selected, references, floors, records."""
