//! Seeded fuzzing of all formats.
