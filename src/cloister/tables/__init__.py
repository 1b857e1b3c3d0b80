"""Tables: codebook, reading files and frames, encoding, the saved run folder, and prediction."""
