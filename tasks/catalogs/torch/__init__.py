"""torch's op_db: OpInfos and devices, their samples, templates and variants (out=, in place, refused calls), gradients and references."""
