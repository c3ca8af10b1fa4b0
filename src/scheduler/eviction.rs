//! Chooses the model to unload for another: a pure function of the resident models.

use std::sync::Arc;

/// A model that takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentModel {
    pub name: Arc<str>,
    pub bytes: u64,
    /// When it was used last, or loaded: greater is later.
    pub used: u64,
    /// It has live requests, another loaded model needs it, or it could not come back as it is.
    pub is_needed: bool,
    /// It is on its way out.
    pub is_leaving: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum EvictionStep {
    /// There is room.
    Enter,
    /// This one has to go.
    Evict(Arc<str>),
    /// What leaves makes room, or nothing can go now.
    Wait,
    /// It never fits.
    Refuse,
}

/// How `wanted_bytes` come into a budget of which `reserved_bytes` are promised to others.
pub fn next_step(
    residents: &[ResidentModel],
    reserved_bytes: u64,
    wanted_bytes: u64,
    budget_bytes: u64,
) -> EvictionStep {
    if wanted_bytes > budget_bytes {
        return EvictionStep::Refuse;
    }
    let sum = |is_counted: fn(&ResidentModel) -> bool| {
        let counted = residents.iter().filter(|resident| is_counted(resident));
        counted.fold(
            reserved_bytes.saturating_add(wanted_bytes),
            |sum, resident| sum.saturating_add(resident.bytes),
        )
    };
    if sum(|_| true) <= budget_bytes {
        return EvictionStep::Enter;
    }
    if sum(|resident| !resident.is_leaving) <= budget_bytes {
        return EvictionStep::Wait;
    }
    residents
        .iter()
        .filter(|resident| !resident.is_leaving && !resident.is_needed && resident.bytes > 0)
        .min_by_key(|resident| (resident.used, &resident.name))
        .map_or(EvictionStep::Wait, |oldest| {
            EvictionStep::Evict(Arc::clone(&oldest.name))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_by_who_was_used_least_lately() {
        let resident = |name: &str, bytes, used, marks: &str| ResidentModel {
            name: Arc::from(name),
            bytes,
            used,
            is_needed: marks.contains('n'),
            is_leaving: marks.contains('l'),
        };
        let evict = |name: &str| EvictionStep::Evict(Arc::from(name));
        let (a, b) = (resident("a", 40, 7, ""), resident("b", 30, 5, ""));
        // Residents, reserved and wanted bytes of a budget of 100.
        let table = [
            (vec![], 0, 100, EvictionStep::Enter),
            (vec![], 0, 101, EvictionStep::Refuse),
            (vec![], 1, 100, EvictionStep::Wait),
            (vec![a.clone(), b.clone()], 0, 30, EvictionStep::Enter),
            (vec![a.clone(), b.clone()], 0, 31, evict("b")),
            (vec![a.clone(), b.clone()], 1, 30, evict("b")),
            (
                vec![a.clone(), resident("b", 30, 5, "n")],
                0,
                31,
                evict("a"),
            ),
            (
                vec![resident("a", 40, 7, "n"), resident("b", 30, 5, "n")],
                0,
                31,
                EvictionStep::Wait,
            ),
            // What leaves still counts; nobody else goes if it is enough.
            (
                vec![a.clone(), resident("b", 30, 5, "l")],
                0,
                60,
                EvictionStep::Wait,
            ),
            (
                vec![a.clone(), resident("b", 30, 5, "l")],
                0,
                61,
                evict("a"),
            ),
            // Nothing is won by what takes nothing.
            (
                vec![resident("a", 0, 1, ""), resident("c", 90, 9, "")],
                0,
                20,
                evict("c"),
            ),
            // Equally old: by name, so that it does not depend on chance.
            (vec![resident("d", 50, 5, ""), b.clone()], 0, 30, evict("b")),
            (
                vec![resident("d", u64::MAX, 5, "n"), a],
                u64::MAX,
                30,
                evict("a"),
            ),
        ];
        for (residents, reserved, wanted, expected) in table {
            let step = next_step(&residents, reserved, wanted, 100);
            assert_eq!(step, expected, "{residents:?} {reserved} {wanted}");
        }
    }
}
