"""What engines compute beside plain attention: paged, latent, capped attention, rotary positions, routing, each operation by itself (`paged_attention`)."""
