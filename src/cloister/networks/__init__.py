"""Networks in torch: any `torch.nn.Module`, trained for a block of tasks at once."""
