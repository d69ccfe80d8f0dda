"""Library of the policies: signals of a reading, effective flags, steps on a grid."""
