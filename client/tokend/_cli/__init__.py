"""The commands of `tokend`, one module each; `tokend.cli` is the way in."""
