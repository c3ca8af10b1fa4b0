//! Answers for the rows of a batch: blocks of rows go through one tree after the other.

use std::sync::{Mutex, PoisonError};
use std::{array, slice, thread};

use super::compile::{Compiled, Nodes, TreePlace};
use super::key::{value_of_leaf, vector_of};
use super::walk::{Index, Node, Table, walk, walk_forest, walk_row_sets, walk_sets, walk_trees};

/// Rows that step together.
const LANES: usize = 16;
/// Trees that one row walks together.
const TREES: usize = 10;
/// The same where one window holds the forest: less is kept per tree.
const FOREST_TREES: usize = 12;
/// Trees of those that are left over.
const FOREST_TREES_LEFT: usize = 4;
/// Rows that go through a tree before the next one, so that its nodes stay in the nearest cache.
const BLOCK: usize = 64;
/// Fewer rows than this, at the end of a block, go one by one: lanes that are not used take time.
const TOGETHER_MIN: usize = 12;
/// Work that is worth a thread of its own, whose start takes some tens of microseconds.
const THREAD_WORK_NS: u64 = 200_000;

/// Parts of a batch per thread, so that one that starts late delays the others less.
const SHARES: usize = 2;

/// What becomes of a row's answers: they are brought into the form of its output.
pub type Finish<'f> = dyn Fn(&[f64], &mut [f32]) + Sync + 'f;

/// Memory for batches, kept between them.
#[derive(Default)]
pub struct Predictor {
    workers: Vec<Scratch>,
    threads_max: usize,
}

/// What one thread needs.
#[derive(Default)]
struct Scratch {
    together: Vec<[u32; LANES]>,
    alone: Vec<u32>,
    sums: Vec<f64>,
}

impl Predictor {
    /// At most as many threads work on a batch.
    pub fn new(threads_max: usize) -> Predictor {
        Predictor {
            workers: Vec::new(),
            threads_max: threads_max.max(1),
        }
    }

    /// Writes the answers of `rows` into `answers`, which has `width` values per row.
    pub fn predict(
        &mut self,
        forest: &Compiled,
        rows: &[f32],
        answers: &mut [f32],
        width: usize,
        finish: &Finish<'_>,
    ) {
        let count = rows.len() / forest.feature_count;
        let threads = self.thread_count(forest, count);
        self.workers
            .resize_with(threads.max(self.workers.len()), Scratch::default);
        let Some((own, others)) = self.workers.split_first_mut() else {
            return;
        };
        if threads == 1 {
            return own.predict(forest, rows, answers, width, finish);
        }
        let share = count.div_ceil(threads * SHARES).next_multiple_of(BLOCK);
        let row_shares = rows.chunks(share * forest.feature_count);
        let shares = Mutex::new(row_shares.zip(answers.chunks_mut(share * width)));
        let work = |scratch: &mut Scratch| {
            loop {
                // The lock is gone before the work begins.
                let next = shares.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((rows, answers)) = next else {
                    return;
                };
                scratch.predict(forest, rows, answers, width, finish);
            }
        };
        let work = &work;
        thread::scope(|scope| {
            for scratch in others.iter_mut().take(threads - 1) {
                // Without another thread, this one does all.
                if thread::Builder::new()
                    .spawn_scoped(scope, move || work(scratch))
                    .is_err()
                {
                    break;
                }
            }
            work(own);
        });
    }

    fn thread_count(&self, forest: &Compiled, count: usize) -> usize {
        let work = (count as u64).saturating_mul(forest.row_cost_ns);
        let worth = usize::try_from(work / THREAD_WORK_NS).unwrap_or(usize::MAX);
        worth
            .min(self.threads_max)
            .min(count.div_ceil(BLOCK))
            .max(1)
    }
}

impl Scratch {
    fn predict(
        &mut self,
        forest: &Compiled,
        rows: &[f32],
        answers: &mut [f32],
        width: usize,
        finish: &Finish<'_>,
    ) {
        let row_blocks = rows.chunks(BLOCK * forest.feature_count);
        for (rows, answers) in row_blocks.zip(answers.chunks_mut(BLOCK * width)) {
            let count = rows.len() / forest.feature_count;
            // Lanes that are not used have sums as well.
            let lanes = count.next_multiple_of(LANES);
            self.sums.clear();
            self.sums.resize(lanes * forest.class_count, 0.0);
            match &forest.nodes {
                Nodes::Small(nodes) => self.add_up(forest, nodes, rows, count),
                Nodes::Medium(nodes) => self.add_up(forest, nodes, rows, count),
                Nodes::Large(nodes) => self.add_up(forest, nodes, rows, count),
            }
            let sums = self.sums.chunks_mut(forest.class_count);
            for (sums, answer) in sums.zip(answers.chunks_mut(width)) {
                let ends = forest.scales.iter().zip(&forest.base_scores);
                for (sum, (scale, base)) in sums.iter_mut().zip(ends) {
                    *sum = *sum * scale + base;
                }
                forest.link.apply(sums);
                finish(sums, answer);
            }
        }
    }

    fn add_up<I: Index>(
        &mut self,
        forest: &Compiled,
        nodes: &[Node<I>],
        rows: &[f32],
        count: usize,
    ) {
        let (features, classes) = (forest.feature_count, forest.class_count);
        let together = match count % LANES {
            rest if rest < TOGETHER_MIN => count - rest,
            _ => count,
        };
        let (rows, alone) = rows.split_at(together * features);
        let lanes = together.next_multiple_of(LANES);
        let (sums, sums_alone) = self.sums.split_at_mut(lanes * classes);
        if together > 0 {
            run(forest, nodes, rows, &mut self.together, sums);
        }
        for (row, sums) in alone.chunks(features).zip(sums_alone.chunks_mut(classes)) {
            run_row(forest, nodes, row, &mut self.alone, sums);
        }
    }
}

/// Adds the leaves of up to a block of rows to `sums`, `L` rows at once.
fn run<I: Index, const L: usize>(
    forest: &Compiled,
    nodes: &[Node<I>],
    rows: &[f32],
    columns: &mut Vec<[u32; L]>,
    sums: &mut [f64],
) {
    let column_count = forest.columns.count();
    let group_rows = L * forest.feature_count;
    let group_count = rows.len().div_ceil(group_rows);
    let needed = group_count * column_count + I::WINDOW;
    if columns.len() < needed {
        // Fresh zeros: what no window reaches is never touched.
        *columns = vec![[0; L]; needed];
    }
    let groups = columns.chunks_mut(column_count);
    for (rows, group) in rows.chunks(group_rows).zip(groups) {
        forest.columns.fill(rows, forest.feature_count, group);
    }
    for tree in &forest.trees {
        let window = I::window(nodes, tree.start);
        let sums = sums.chunks_mut(L * forest.class_count);
        for (group, sums) in (0..group_count).zip(sums) {
            let columns = I::window(columns, group * column_count);
            let leaves: [I; L] = if tree.has_sets {
                let kinds = forest.kinds.get(tree.start..).unwrap_or_default();
                walk_sets::<I, L>(window, columns, tree.depth, kinds, &forest.sets)
            } else {
                walk::<I, L>(window, columns, tree.depth)
            };
            let keys = leaves.map(|leaf| key_at::<I>(window, leaf));
            add(forest, tree, &keys, sums);
        }
    }
}

/// Adds the leaves of one row to `sums`, several trees at once.
fn run_row<I: Index>(
    forest: &Compiled,
    nodes: &[Node<I>],
    row: &[f32],
    columns: &mut Vec<u32>,
    sums: &mut [f64],
) {
    let window = match forest.row_nodes {
        Some(_) => I::WINDOW.max(u16::WINDOW),
        None => I::WINDOW,
    };
    let needed = forest.columns.count() + window;
    if columns.len() < needed {
        *columns = vec![0; needed];
    }
    forest.columns.fill_row(row, columns);
    // Trees with sets are the last.
    let (together, with_sets) = forest.trees.split_at(forest.plain_tree_count);
    match &forest.row_nodes {
        Some(row_nodes) => {
            let (row_nodes, columns) = (u16::window(row_nodes, 0), u16::window(columns, 0));
            let (groups, left) = together.as_chunks::<FOREST_TREES>();
            for trees in groups {
                let keys = forest_keys::<FOREST_TREES>(row_nodes, trees, columns);
                add_to_row(forest, trees, &keys, sums);
            }
            for trees in left.chunks(FOREST_TREES_LEFT) {
                let keys = forest_keys::<FOREST_TREES_LEFT>(row_nodes, trees, columns);
                add_to_row(forest, trees, &keys, sums);
            }
        }
        None => {
            let columns = I::window(columns, 0);
            for trees in together.chunks(TREES) {
                let keys = row_keys::<I>(nodes, trees, columns);
                add_to_row(forest, trees, &keys, sums);
            }
        }
    }
    let columns = I::window(columns, 0);
    for tree in with_sets {
        let window = I::window(nodes, tree.start);
        let kinds = forest.kinds.get(tree.start..).unwrap_or_default();
        let leaf = walk_row_sets::<I>(window, columns, tree.depth, kinds, &forest.sets);
        add_to_row(
            forest,
            slice::from_ref(tree),
            &[key_at::<I>(window, leaf)],
            sums,
        );
    }
}

/// What one row finds in up to `T` trees of a forest that one window holds. The last
/// tree is walked in place of missing ones, as in [`row_keys`].
#[inline(always)]
fn forest_keys<const T: usize>(
    nodes: &<u16 as Index>::Window<Node<u16>>,
    trees: &[TreePlace],
    columns: &<u16 as Index>::Window<u32>,
) -> [u32; T] {
    let Some(last) = trees.last() else {
        return [0; T];
    };
    let root = |index| u16::from_usize(trees.get(index).unwrap_or(last).start);
    let leaves = walk_forest::<u16, T>(nodes, array::from_fn(root), columns, last.depth);
    leaves.map(|leaf| key_at::<u16>(nodes, leaf))
}

/// What one row finds in up to [`TREES`] trees. Where there are fewer, the last is walked in place
/// of those that are missing: they step at once, so that this costs less than fewer would one by
/// one.
#[inline(always)]
fn row_keys<I: Index>(
    nodes: &[Node<I>],
    trees: &[TreePlace],
    columns: &I::Window<u32>,
) -> [u32; TREES] {
    let Some(last) = trees.last() else {
        return [0; TREES];
    };
    let starts = array::from_fn(|index| trees.get(index).unwrap_or(last).start);
    // The last is the deepest.
    let leaves = walk_trees::<I, TREES>(nodes, starts, columns, last.depth);
    leaves.map(|leaf| nodes[leaf].key)
}

/// Adds what one row found in some trees, in their order: a sum does not depend on how many rows
/// come with the row.
#[inline(always)]
fn add_to_row(forest: &Compiled, trees: &[TreePlace], keys: &[u32], sums: &mut [f64]) {
    if let (true, [sum]) = (forest.has_one_sum, &mut *sums) {
        let keys = keys.iter().take(trees.len());
        *sum = keys.fold(*sum, |sum, &key| sum + leaf_value(key));
        return;
    }
    for (tree, &key) in trees.iter().zip(keys) {
        add(forest, tree, &[key], sums);
    }
}

#[inline(always)]
fn key_at<I: Index>(nodes: &I::Window<Node<I>>, leaf: I) -> u32 {
    nodes.at(leaf.to_usize()).key
}

/// The value of a leaf with one.
#[inline(always)]
fn leaf_value(key: u32) -> f64 {
    f64::from(value_of_leaf(key))
}

/// Adds what the rows of a group found in a tree.
#[inline(always)]
fn add(forest: &Compiled, tree: &TreePlace, keys: &[u32], sums: &mut [f64]) {
    match tree.class {
        Some(_) if forest.class_count == 1 => {
            for (sum, &key) in sums.iter_mut().zip(keys) {
                *sum += leaf_value(key);
            }
        }
        Some(class) => {
            for (sums, &key) in sums.chunks_mut(forest.class_count).zip(keys) {
                if let Some(sum) = sums.get_mut(class) {
                    *sum += leaf_value(key);
                }
            }
        }
        None => {
            for (sums, &key) in sums.chunks_mut(forest.class_count).zip(keys) {
                let start = vector_of(key).saturating_mul(forest.class_count);
                let vector = forest.vectors.get(start..).unwrap_or_default();
                for (sum, &value) in sums.iter_mut().zip(vector) {
                    *sum += f64::from(value);
                }
            }
        }
    }
}
