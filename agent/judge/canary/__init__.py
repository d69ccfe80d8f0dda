"""The verdict on green next to blue, and on green alone against blue's baseline."""
