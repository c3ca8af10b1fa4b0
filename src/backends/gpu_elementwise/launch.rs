//! Which elements one launch of the kernel computes.
//!
//! Requests whose inputs and outputs follow each other are one segment. Segments are rows of one
//! launch, whose price for the CPU is that of one: it takes the CPU some microseconds, as long as
//! a device needs for several megabytes.

use crate::formula::Formula;
use crate::geometry::{ELEMENTS_MAX, Geometry};
use crate::ptx::{SEGMENT_BYTES, SEGMENTS_MAX};

/// Elements whose inputs and outputs lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Addresses; 0 where the operation has one input.
    pub inputs: [u64; 2],
    pub output: u64,
    pub count: usize,
}

/// One launch: up to [`SEGMENTS_MAX`] segments in the same groups of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    segments: Vec<Segment>,
    pub inner: usize,
    pub channels: usize,
}

impl Launch {
    pub fn new(segment: Segment, inner: usize, channels: usize) -> Launch {
        Launch {
            segments: vec![segment],
            inner,
            channels,
        }
    }

    pub fn rows(&self) -> usize {
        self.segments.len()
    }

    /// Threads of a row: elements of the longest segment.
    pub fn count(&self) -> usize {
        let counts = self.segments.iter().map(|segment| segment.count);
        counts.max().unwrap_or(0)
    }

    /// The segments as the kernel reads them.
    pub fn parameter(&self) -> [u8; SEGMENTS_MAX * SEGMENT_BYTES] {
        let mut bytes = [0; SEGMENTS_MAX * SEGMENT_BYTES];
        for (room, segment) in bytes
            .as_chunks_mut::<SEGMENT_BYTES>()
            .0
            .iter_mut()
            .zip(&self.segments)
        {
            let [first, second] = segment.inputs;
            let words = [first, second, segment.output, segment.count as u64];
            for (room, word) in room.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *room = word.to_le_bytes();
            }
        }
        bytes
    }

    /// Whether a row of `count` elements would leave at most as many threads without an element as
    /// have one, and has room.
    fn has_room_for(&self, count: usize) -> bool {
        let rows = self.rows() + 1;
        let sum = self.segments.iter().map(|segment| segment.count);
        let sum = sum.fold(count, usize::saturating_add);
        rows <= SEGMENTS_MAX
            && self.count().max(count).saturating_mul(rows) <= sum.saturating_mul(2)
    }
}

/// The launches of requests, in their order, for an operation with `input_count` inputs.
pub fn launches(
    requests: impl Iterator<Item = ([u64; 2], u64, Geometry)>,
    formula: &Formula,
    input_count: usize,
) -> Vec<Launch> {
    let mut launches: Vec<Launch> = Vec::new();
    for (inputs, output, geometry) in requests {
        let segment = Segment {
            inputs,
            output,
            count: geometry.count,
        };
        let Geometry {
            inner, channels, ..
        } = geometry;
        let last = launches.last_mut();
        let last = last.filter(|last| (last.inner, last.channels) == (inner, channels));
        if let Some(last) = last {
            if let Some(before) = last.segments.last_mut()
                && follows(before, &segment, formula, input_count)
            {
                before.count += segment.count;
                continue;
            }
            if last.has_room_for(segment.count) {
                last.segments.push(segment);
                continue;
            }
        }
        launches.push(Launch::new(segment, inner, channels));
    }
    launches
}

/// Whether inputs and output of `next` lie behind those of `before`.
fn follows(before: &Segment, next: &Segment, formula: &Formula, input_count: usize) -> bool {
    let is_behind = |before_address: u64, address: u64, bytes: usize| {
        before_address.checked_add((before.count * bytes) as u64) == Some(address)
    };
    let mut inputs = before.inputs.iter().zip(next.inputs).take(input_count);
    before.count + next.count <= ELEMENTS_MAX
        && inputs.all(|(one, other)| is_behind(*one, other, formula.element_bytes))
        && is_behind(before.output, next.output, formula.output_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operation;
    use conch_backend_sdk::DataType;

    /// Addresses of two inputs and the output, elements, and `inner`.
    type PlannedRequest = (u64, u64, u64, usize, usize);

    fn planned(given: &[PlannedRequest]) -> Vec<Launch> {
        let formula = Formula::new(Operation::Add, DataType::Fp16, DataType::Fp16).unwrap();
        let requests = given.iter().map(|(a, b, output, count, inner)| {
            let geometry = Geometry {
                count: *count,
                inner: *inner,
                channels: 1,
            };
            ([*a, *b], *output, geometry)
        });
        launches(requests, &formula, 2)
    }

    fn segment((a, b, output, count, _): PlannedRequest) -> Segment {
        Segment {
            inputs: [a, b],
            output,
            count,
        }
    }

    #[test]
    fn neighbours_are_one_segment_and_others_rows() {
        for (given, expected) in [
            (&[][..], &[][..]),
            (
                &[
                    (0, 100, 200, 3, 1),
                    (6, 106, 206, 2, 1),
                    (10, 110, 210, 1, 1),
                ],
                &[&[(0, 100, 200, 6, 1)][..]][..],
            ),
            // The second input, or the output, lies elsewhere.
            (
                &[(0, 100, 200, 3, 1), (6, 107, 206, 2, 1)],
                &[&[(0, 100, 200, 3, 1), (6, 107, 206, 2, 1)]],
            ),
            (
                &[
                    (0, 100, 200, 3, 1),
                    (6, 106, 300, 2, 1),
                    (10, 110, 304, 2, 1),
                ],
                &[&[(0, 100, 200, 3, 1), (6, 106, 300, 4, 1)]],
            ),
            // Other groups of elements are another launch.
            (
                &[(0, 100, 200, 3, 1), (6, 106, 206, 2, 2)],
                &[&[(0, 100, 200, 3, 1)], &[(6, 106, 206, 2, 2)]],
            ),
            // So is what would leave most threads of its row without an element.
            (
                &[(0, 0, 0, 900, 1), (0, 0, 0, 2, 1), (0, 0, 0, 2, 1)],
                &[&[(0, 0, 0, 900, 1), (0, 0, 0, 2, 1)], &[(0, 0, 0, 2, 1)]],
            ),
        ] {
            let found = planned(given);
            let segments: Vec<Vec<Segment>> = expected
                .iter()
                .map(|rows| rows.iter().copied().map(segment).collect())
                .collect();
            let found: Vec<_> = found.into_iter().map(|launch| launch.segments).collect();
            assert_eq!(found, segments, "{given:?}");
        }
    }

    #[test]
    fn launches_have_so_many_rows_at_most() {
        let given: Vec<PlannedRequest> = (0..2 * SEGMENTS_MAX as u64 + 1)
            .map(|number| (1000 * number, 0, 1000 * number, 5, 1))
            .collect();
        let rows: Vec<_> = planned(&given).iter().map(Launch::rows).collect();
        assert_eq!(rows, [SEGMENTS_MAX, SEGMENTS_MAX, 1]);
    }

    #[test]
    fn parameters_lie_as_the_kernel_reads_them() {
        let launches = planned(&[(1, 2, 3, 4, 1), (90, 10, 11, 5, 1)]);
        let [launch] = &launches[..] else {
            panic!("one launch: {launches:?}")
        };
        let bytes = launch.parameter();
        let words: Vec<u64> = bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        assert_eq!(words[..8], [1, 2, 3, 4, 90, 10, 11, 5]);
        assert!(words[8..].iter().all(|word| *word == 0));
        assert_eq!((launch.rows(), launch.count()), (2, 5));
    }
}
