//! The dynamic table: fields that the peer has sent before, the newest first.

use std::collections::VecDeque;

/// What a field costs beside its bytes, as HPACK counts.
pub(crate) const FIELD_BYTES: usize = 32;
/// What a connection has from the start; its settings leave it at that.
pub(crate) const TABLE_BYTES_MAX: usize = 4096;

struct TableEntry {
    /// The name, then the value.
    bytes: Box<[u8]>,
    name_bytes: usize,
}

pub(crate) struct DynamicTable {
    entries: VecDeque<TableEntry>,
    /// As HPACK counts.
    byte_count: usize,
    byte_limit: usize,
}

impl DynamicTable {
    pub(crate) fn new() -> DynamicTable {
        DynamicTable {
            entries: VecDeque::new(),
            byte_count: 0,
            byte_limit: TABLE_BYTES_MAX,
        }
    }

    /// The field at `index`, from 0 on.
    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        Some(entry.bytes.split_at(entry.name_bytes))
    }

    /// Takes a field in; others leave until there is room. One that is larger than the table
    /// empties it.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let cost = name.len() + value.len() + FIELD_BYTES;
        if cost > self.byte_limit {
            self.evict(0);
            return;
        }
        // Small, as the table is.
        let bytes = [name, value].concat();
        self.evict(self.byte_limit - cost);
        self.entries.push_front(TableEntry {
            bytes: bytes.into_boxed_slice(),
            name_bytes: name.len(),
        });
        self.byte_count += cost;
    }

    pub(crate) fn set_limit(&mut self, byte_limit: usize) {
        self.byte_limit = byte_limit;
        self.evict(byte_limit);
    }

    fn evict(&mut self, byte_limit: usize) {
        while self.byte_count > byte_limit
            && let Some(entry) = self.entries.pop_back()
        {
            self.byte_count -= entry.bytes.len() + FIELD_BYTES;
        }
    }
}
