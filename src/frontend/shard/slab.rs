//! A table whose keys never name a later entry: index and generation.

/// Entries under keys of 32 bits of generation (high) and 32 bits of index (low).
pub(crate) struct Slab<T> {
    slots: Vec<SlabSlot<T>>,
    free: Vec<u32>,
}

struct SlabSlot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, entry: T) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index =
                    u32::try_from(self.slots.len()).expect("bounded far below by the callers");
                self.slots.push(SlabSlot {
                    generation: 0,
                    entry: None,
                });
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    fn slot(&mut self, key: u64) -> Option<&mut SlabSlot<T>> {
        let index = usize::try_from(key & u64::from(u32::MAX)).ok()?;
        self.slots
            .get_mut(index)
            .filter(|slot| u64::from(slot.generation) == key >> 32)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        self.slot(key)?.entry.as_mut()
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let slot = self.slot(key)?;
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push((key & u64::from(u32::MAX)) as u32);
        Some(entry)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut())
    }

    /// Takes all entries out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut entries = Vec::with_capacity(self.len());
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(entry) = slot.entry.take() {
                slot.generation = slot.generation.wrapping_add(1);
                self.free
                    .push(u32::try_from(index).expect("bounded far below by the callers"));
                entries.push(entry);
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_removed_entries_name_nothing() {
        let mut slab = Slab::new();
        let (first, second) = (slab.insert("a"), slab.insert("b"));
        assert_eq!(slab.remove(first), Some("a"));
        assert_eq!(slab.remove(first), None);
        let third = slab.insert("c");
        assert_ne!(first, third, "same place, later generation");
        assert!(slab.get_mut(first).is_none());
        assert_eq!(slab.get_mut(third), Some(&mut "c"));
        assert_eq!(slab.len(), 2);
        assert!(slab.get_mut(u64::MAX).is_none());
        assert_eq!(slab.drain(), ["c", "b"]);
        assert_eq!((slab.len(), slab.get_mut(second)), (0, None));
    }
}
