//! Traversal of one tree by several rows at once.
//!
//! Rows step together, so that the loads of one overlap those of the others. An index is as wide as
//! a window over the nodes of its tree, or the columns of its rows, has entries: no index can leave
//! its window, and none is checked.

use super::key::value_of;
use super::set::{Set, Sets};

/// A node: a comparison of keys, or a leaf.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node<I> {
    /// That of the threshold; of a leaf, that of its value, or of the number of its vector.
    pub key: u32,
    pub column: I,
    /// The first child, counted from the root; the second follows it.
    pub first: I,
}

/// The width of indexes of nodes and columns.
pub trait Index: Copy + Default + Eq {
    /// Entries that a window has; 0 if windows are what there is.
    const WINDOW: usize;
    type Window<T>: Table<T> + ?Sized;

    fn from_usize(index: usize) -> Self;
    fn to_usize(self) -> usize;
    /// This node, or the one behind it.
    fn plus(self, is_second: bool) -> Self;
    /// The entries from `start` on.
    fn window<T>(entries: &[T], start: usize) -> &Self::Window<T>;
}

/// Entries by number.
pub trait Table<T> {
    fn at(&self, index: usize) -> &T;
}

impl<T, const N: usize> Table<T> for [T; N] {
    #[inline(always)]
    fn at(&self, index: usize) -> &T {
        // Indexes are narrower than the window, so that nothing is checked.
        &self[index]
    }
}

impl<T> Table<T> for [T] {
    #[inline(always)]
    fn at(&self, index: usize) -> &T {
        &self[index]
    }
}

macro_rules! narrow_index {
    ($index:ty, $window:expr) => {
        impl Index for $index {
            const WINDOW: usize = $window;
            type Window<T> = [T; $window];

            fn from_usize(index: usize) -> Self {
                index as Self
            }

            #[inline(always)]
            fn to_usize(self) -> usize {
                usize::from(self)
            }

            #[inline(always)]
            fn plus(self, is_second: bool) -> Self {
                self.wrapping_add(Self::from(is_second))
            }

            #[inline(always)]
            fn window<T>(entries: &[T], start: usize) -> &[T; $window] {
                let window = entries.get(start..).and_then(|rest| rest.first_chunk());
                window.expect("the entries end with room for a window")
            }
        }
    };
}
narrow_index!(u8, 1 << 8);
narrow_index!(u16, 1 << 16);

impl Index for u32 {
    const WINDOW: usize = 0;
    type Window<T> = [T];

    fn from_usize(index: usize) -> Self {
        index as Self
    }

    #[inline(always)]
    fn to_usize(self) -> usize {
        self as usize
    }

    #[inline(always)]
    fn plus(self, is_second: bool) -> Self {
        self.wrapping_add(Self::from(is_second))
    }

    #[inline(always)]
    fn window<T>(entries: &[T], start: usize) -> &[T] {
        entries.get(start..).unwrap_or_default()
    }
}

/// Steps before it is looked whether all rows are at leaves. Most trees are not deeper.
const STRIDE: u32 = 8;

/// The leaves of `L` rows.
#[inline(always)]
pub fn walk<I: Index, const L: usize>(
    nodes: &I::Window<Node<I>>,
    columns: &I::Window<[u32; L]>,
    depth: u32,
) -> [I; L] {
    let mut cursors = [I::default(); L];
    let mut left = depth;
    loop {
        for _ in 0..left.min(STRIDE) {
            for (lane, cursor) in cursors.iter_mut().enumerate() {
                let node = nodes.at(cursor.to_usize());
                let value = columns.at(node.column.to_usize())[lane];
                *cursor = node.first.plus(value >= node.key);
            }
        }
        left -= left.min(STRIDE);
        if left == 0
            || cursors
                .iter()
                .all(|&cursor| nodes.at(cursor.to_usize()).first == cursor)
        {
            return cursors;
        }
    }
}

/// The leaves of one row in `T` trees, which are walked together as rows are. `starts` are where
/// the trees begin among the nodes.
///
/// Indexes are those of all nodes, and checked: to keep where they begin for each of so many trees
/// takes more registers than there are, and costs more than the checks.
#[inline(always)]
pub fn walk_trees<I: Index, const T: usize>(
    nodes: &[Node<I>],
    starts: [usize; T],
    columns: &I::Window<u32>,
    depth: u32,
) -> [usize; T] {
    let mut cursors = starts;
    let mut left = depth;
    loop {
        for _ in 0..left.min(STRIDE) {
            for (cursor, start) in cursors.iter_mut().zip(starts) {
                let node = &nodes[*cursor];
                let value = *columns.at(node.column.to_usize());
                *cursor = start + node.first.to_usize() + usize::from(value >= node.key);
            }
        }
        left -= left.min(STRIDE);
        let mut pairs = cursors.iter().zip(starts);
        if left == 0
            || pairs.all(|(&cursor, start)| start + nodes[cursor].first.to_usize() == cursor)
        {
            return cursors;
        }
    }
}

/// The same where one window holds all nodes of the forest, with indexes that are counted from the
/// first of them: nothing is checked, and nothing is kept of where a tree begins.
#[inline(always)]
pub fn walk_forest<I: Index, const T: usize>(
    nodes: &I::Window<Node<I>>,
    roots: [I; T],
    columns: &I::Window<u32>,
    depth: u32,
) -> [I; T] {
    let mut cursors = roots;
    let mut left = depth;
    loop {
        for _ in 0..left.min(STRIDE) {
            for cursor in &mut cursors {
                let node = nodes.at(cursor.to_usize());
                let value = *columns.at(node.column.to_usize());
                *cursor = node.first.plus(value >= node.key);
            }
        }
        left -= left.min(STRIDE);
        if left == 0
            || cursors
                .iter()
                .all(|&cursor| nodes.at(cursor.to_usize()).first == cursor)
        {
            return cursors;
        }
    }
}

/// What a node tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    pub has_set: bool,
    /// It is categories outside of the set that go to the second child.
    pub is_outside_second: bool,
    pub set: Set,
}

/// The leaves of `L` rows in a tree with categorical splits; `kinds` are those of its nodes.
///
/// Both tests are made at every node: a branch that rows take differently costs more.
#[inline(always)]
pub fn walk_sets<I: Index, const L: usize>(
    nodes: &I::Window<Node<I>>,
    columns: &I::Window<[u32; L]>,
    depth: u32,
    kinds: &[Kind],
    sets: &Sets,
) -> [I; L] {
    let mut cursors = [I::default(); L];
    let mut left = depth;
    loop {
        for _ in 0..left.min(STRIDE) {
            for (lane, cursor) in cursors.iter_mut().enumerate() {
                let index = cursor.to_usize();
                let node = nodes.at(index);
                let value = columns.at(node.column.to_usize())[lane];
                let kind = kinds.get(index).copied().unwrap_or_default();
                let is_chosen = kind.sends_to_second(sets, value_of(value));
                let is_above = value >= node.key;
                let is_second = (kind.has_set & is_chosen) | (!kind.has_set & is_above);
                *cursor = node.first.plus(is_second);
            }
        }
        left -= left.min(STRIDE);
        if left == 0
            || cursors
                .iter()
                .all(|&cursor| nodes.at(cursor.to_usize()).first == cursor)
        {
            return cursors;
        }
    }
}

/// The leaf of one row in a tree with categorical splits.
pub fn walk_row_sets<I: Index>(
    nodes: &I::Window<Node<I>>,
    columns: &I::Window<u32>,
    depth: u32,
    kinds: &[Kind],
    sets: &Sets,
) -> I {
    let mut cursor = I::default();
    for _ in 0..depth {
        let index = cursor.to_usize();
        let node = nodes.at(index);
        let value = *columns.at(node.column.to_usize());
        let kind = kinds.get(index).copied().unwrap_or_default();
        cursor = node.first.plus(match kind.has_set {
            true => kind.sends_to_second(sets, value_of(value)),
            false => value >= node.key,
        });
    }
    cursor
}

impl Kind {
    #[inline(always)]
    fn sends_to_second(self, sets: &Sets, value: f32) -> bool {
        !value.is_nan() & (sets.contains(self.set, value) != self.is_outside_second)
    }
}
