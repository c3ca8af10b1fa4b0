//! Kinds of memory, and the place of bytes in them.

/// The kind of memory, numbered as in Triton's C API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    #[default]
    Cpu = 0,
    CpuPinned = 1,
    Gpu = 2,
}

/// Kind and id of the memory that holds a buffer. The id is the GPU's ordinal, 0 for host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryPlace {
    pub kind: MemoryKind,
    pub id: i64,
}

impl MemoryPlace {
    /// Ordinary host memory.
    pub const CPU: MemoryPlace = MemoryPlace {
        kind: MemoryKind::Cpu,
        id: 0,
    };

    /// Whether the CPU can read the bytes directly.
    pub const fn is_host(self) -> bool {
        !matches!(self.kind, MemoryKind::Gpu)
    }
}
