"""What several policies need: signals of a reading, steps on a grid."""
