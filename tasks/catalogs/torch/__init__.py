"""torch's op_db: OpInfos, their samples and variants, gradients and references."""
