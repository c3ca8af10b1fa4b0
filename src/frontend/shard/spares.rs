//! Buffers of a shard that no connection uses now.
//!
//! A connection between requests keeps none: what arrives next is received into one from here. So
//! an idle connection costs no buffer, and a busy one no allocation.

use std::cell::RefCell;

/// Buffers that are kept; more are given back to the allocator. Each as large as its owner lets it
/// grow, 64 KiB at most.
const COUNT_MAX: usize = 32;

/// Spare buffers.
#[derive(Default)]
pub struct SpareBuffers {
    /// Of one length, all of it initialised.
    inputs: RefCell<Vec<Vec<u8>>>,
    /// Empty, with some capacity.
    outputs: RefCell<Vec<Vec<u8>>>,
}

impl SpareBuffers {
    /// A buffer of `length` initialised bytes, which is that of all inputs.
    pub fn take_input(&self, length: usize) -> Vec<u8> {
        let spare = self.inputs.borrow_mut().pop();
        spare
            .filter(|spare| spare.len() == length)
            .unwrap_or_else(|| vec![0; length])
    }

    pub fn give_input(&self, buffer: Vec<u8>) {
        push_spare(&self.inputs, buffer);
    }

    /// An empty buffer.
    pub fn take_output(&self) -> Vec<u8> {
        self.outputs.borrow_mut().pop().unwrap_or_default()
    }

    pub fn give_output(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        push_spare(&self.outputs, buffer);
    }
}

fn push_spare(buffers: &RefCell<Vec<Vec<u8>>>, buffer: Vec<u8>) {
    let mut buffers = buffers.borrow_mut();
    if buffer.capacity() > 0 && buffers.len() < COUNT_MAX {
        buffers.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_their_number_is_bounded() {
        let spares = SpareBuffers::default();
        let input = spares.take_input(8);
        assert_eq!(input, [0; 8]);
        let address = input.as_ptr();
        spares.give_input(input);
        let again = spares.take_input(8);
        assert_eq!(again.as_ptr(), address);
        spares.give_input(vec![1; 8]);
        assert_eq!(spares.take_input(9), [0; 9], "another length");
        spares.give_output(b"text".to_vec());
        let output = spares.take_output();
        assert!(output.is_empty() && output.capacity() >= 4);
        spares.give_output(Vec::new());
        assert!(spares.outputs.borrow().is_empty(), "nothing to keep");
        for _ in 0..2 * COUNT_MAX {
            spares.give_output(vec![0; 4]);
        }
        assert_eq!(spares.outputs.borrow().len(), COUNT_MAX);
    }
}
