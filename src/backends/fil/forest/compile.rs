//! From a description to the layout that is traversed.
//!
//! Every numerical split becomes one comparison, `value >= threshold`, which sends a row to the
//! second child, and NaN to the first. So a missing value costs nothing where it goes the way of
//! the failed comparison. For the other splits both sides are negated, which turns them round. All
//! comparisons of 64-bit thresholds with 32-bit values are exact: the threshold is rounded towards
//! the side on which no 32-bit value lies between.
//!
//! The two children of a node lie beside each other, and theirs behind them, so that two steps read
//! one line of a cache as a rule; such groups lie breadth first. A leaf reads the column
//! that is always NaN and is its own first child, so that a row may take more steps than it needs:
//! rows of different depths are traversed together without a branch.

use std::collections::VecDeque;

use super::Link;
use super::columns::{Column, Columns};
use super::key::{key_of, key_of_leaf, key_of_vector};
use super::model::{Forest, Node as Described, NodeKind, Split, Test, Tree};
use super::set::{Set, Sets};
use super::walk::{Index, Kind, Node};

/// A forest that can be traversed.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub feature_count: usize,
    pub class_count: usize,
    pub link: Link,
    pub(super) columns: Columns,
    pub(super) nodes: Nodes,
    /// The same for single rows, with indexes from the forest's first node. None if there are more
    /// nodes than 16 bits count.
    pub(super) row_nodes: Option<Vec<Node<u16>>>,
    /// What each node tests. Empty if no node has a set.
    pub(super) kinds: Vec<Kind>,
    /// Those with sets are the last, and of the others the deepest.
    pub(super) trees: Vec<TreePlace>,
    /// Trees without sets.
    pub(super) plain_tree_count: usize,
    /// Whether all leaves add to one sum.
    pub(super) has_one_sum: bool,
    /// A guess of the time that a row takes, in nanoseconds.
    pub(super) row_cost_ns: u64,
    /// Values of leaves with one per class.
    pub(super) vectors: Vec<f32>,
    pub(super) sets: Sets,
    /// What the sum of each class is multiplied by, and what is added then.
    pub(super) scales: Vec<f64>,
    pub(super) base_scores: Vec<f64>,
}

/// The nodes, with indexes as narrow as the largest tree allows.
#[derive(Clone, Debug)]
pub enum Nodes {
    Small(Vec<Node<u8>>),
    Medium(Vec<Node<u16>>),
    Large(Vec<Node<u32>>),
}

/// A tree among the nodes of its forest.
#[derive(Clone, Copy, Debug)]
pub struct TreePlace {
    pub start: usize,
    pub node_count: usize,
    /// Steps from the root to the deepest leaf.
    pub depth: u32,
    /// None: leaves are vectors.
    pub class: Option<usize>,
    pub has_sets: bool,
}

/// A tree that is being written.
struct UnfinishedTree<'t> {
    tree: &'t Tree,
    sets: Vec<Set>,
    class_count: usize,
    place: TreePlace,
}

/// A node of the description whose place among its tree's nodes is known.
struct UnwrittenNode {
    index: usize,
    /// Steps from the root.
    depth: u32,
    position: usize,
}

/// A node before its width is known.
#[derive(Clone, Copy, Default)]
struct Wide {
    key: u32,
    column: usize,
    first: usize,
    kind: Kind,
}

/// What a split comes to.
enum Route {
    /// All rows go to this child.
    Always(usize),
    Compare {
        threshold: f32,
        is_negated: bool,
        first: usize,
        second: usize,
    },
    Member {
        set: usize,
        is_outside_second: bool,
        first: usize,
        second: usize,
    },
}

impl Compiled {
    /// # Errors
    /// What is wrong with the description, or too large.
    pub fn new(forest: &Forest) -> Result<Compiled, String> {
        forest.check()?;
        if forest.feature_count == 0 {
            return Err("the model has no features".to_owned());
        }
        let mut builder = Builder::default();
        for (index, tree) in forest.trees.iter().enumerate() {
            builder
                .add(tree, forest.class_count)
                .map_err(|what| format!("tree {index}: {what}"))?;
        }
        // Sums hardly depend on the order, and trees of one depth are walked together.
        builder
            .trees
            .sort_by_key(|tree| (tree.has_sets, tree.depth));
        let scales = forest.trees_per_class().into_iter().map(|count| {
            if forest.is_averaged && count > 0 {
                1.0 / count as f64
            } else {
                1.0
            }
        });
        Ok(Compiled {
            feature_count: forest.feature_count,
            class_count: forest.class_count,
            link: forest.link,
            nodes: builder.nodes(),
            row_nodes: builder.row_nodes(),
            kinds: builder.kinds(),
            plain_tree_count: builder.trees.partition_point(|tree| !tree.has_sets),
            has_one_sum: forest.class_count == 1
                && builder.trees.iter().all(|tree| tree.class.is_some()),
            row_cost_ns: row_cost_ns(&builder.trees, &builder.columns),
            columns: builder.columns,
            trees: builder.trees,
            vectors: builder.vectors,
            sets: builder.sets,
            scales: scales.collect(),
            base_scores: forest.base_scores.clone(),
        })
    }

    pub fn tree_count(&self) -> usize {
        self.trees.len()
    }

    pub fn node_count(&self) -> usize {
        self.trees.iter().map(|tree| tree.node_count).sum()
    }

    /// Bytes that the layout holds.
    pub fn byte_count(&self) -> usize {
        let nodes = match &self.nodes {
            Nodes::Small(nodes) => size_of_val(&**nodes),
            Nodes::Medium(nodes) => size_of_val(&**nodes),
            Nodes::Large(nodes) => size_of_val(&**nodes),
        };
        nodes
            + self.row_nodes.as_deref().map_or(0, size_of_val)
            + self.sets.byte_count()
            + size_of_val(&*self.kinds)
            + size_of_val(&*self.trees)
            + size_of_val(&*self.vectors)
    }
}

/// A guess of the time that a row takes, in nanoseconds.
fn row_cost_ns(trees: &[TreePlace], columns: &Columns) -> u64 {
    let steps = |tree: &TreePlace| u64::from(tree.depth.min(24)) + 2;
    trees.iter().map(steps).sum::<u64>() + columns.count() as u64
}

#[derive(Default)]
struct Builder {
    columns: Columns,
    nodes: Vec<Wide>,
    trees: Vec<TreePlace>,
    vectors: Vec<f32>,
    sets: Sets,
}

impl Builder {
    fn add(&mut self, tree: &Tree, class_count: usize) -> Result<(), String> {
        let sets = tree
            .sets
            .iter()
            .map(|categories| self.sets.add(categories))
            .collect::<Result<Vec<Set>, String>>()?;
        let mut unfinished = UnfinishedTree {
            tree,
            sets,
            class_count,
            place: TreePlace {
                start: self.nodes.len(),
                node_count: 0,
                depth: 0,
                class: tree.class,
                has_sets: false,
            },
        };
        self.nodes.push(Wide::default());
        let root = UnwrittenNode {
            index: 0,
            depth: 0,
            position: 0,
        };
        // Each is written with its children, which have their place already, and their children.
        let mut open = VecDeque::from([root]);
        while let Some(node) = open.pop_front() {
            for child in self.write(&mut unfinished, node)?.into_iter().flatten() {
                let children = self.write(&mut unfinished, child)?;
                open.extend(children.into_iter().flatten());
            }
        }
        let mut place = unfinished.place;
        place.node_count = self.nodes.len() - place.start;
        self.trees.push(place);
        Ok(())
    }

    /// Writes a node where its place is, and makes a place for its children, which it returns.
    fn write(
        &mut self,
        unfinished: &mut UnfinishedTree<'_>,
        unwritten: UnwrittenNode,
    ) -> Result<Option<[UnwrittenNode; 2]>, String> {
        let UnwrittenNode {
            index,
            depth,
            position,
        } = unwritten;
        let (tree, start) = (unfinished.tree, unfinished.place.start);
        unfinished.place.depth = unfinished.place.depth.max(depth);
        let (node, route) = resolve(tree, index)?;
        let (wide, children) = match route {
            None => {
                let leaf = Wide {
                    key: self.leaf(node, tree, unfinished.class_count)?,
                    // The column of leaves has no number before all others have.
                    column: usize::MAX,
                    first: position,
                    kind: Kind::default(),
                };
                (leaf, None)
            }
            Some(route) => {
                let NodeKind::Split(split) = &node.kind else {
                    return Err(format!("node {index} is no split"));
                };
                unfinished.place.has_sets |= matches!(route, Route::Member { .. });
                let position = self.nodes.len() - start;
                self.nodes.extend([Wide::default(); 2]);
                let (wide, first, second) =
                    self.split(split, &route, &unfinished.sets, position)?;
                let child = |index, position| UnwrittenNode {
                    index,
                    depth: depth + 1,
                    position,
                };
                let children = [child(first, position), child(second, position + 1)];
                (wide, Some(children))
            }
        };
        if let Some(place) = self.nodes.get_mut(start + position) {
            *place = wide;
        }
        Ok(children)
    }

    fn split(
        &mut self,
        split: &Split,
        route: &Route,
        tree_sets: &[Set],
        first_number: usize,
    ) -> Result<(Wide, usize, usize), String> {
        let (threshold, is_negated, kind, first, second) = match *route {
            Route::Always(_) => return Err("a split without a test".to_owned()),
            Route::Compare {
                threshold,
                is_negated,
                first,
                second,
            } => (threshold, is_negated, Kind::default(), first, second),
            Route::Member {
                set,
                is_outside_second,
                first,
                second,
            } => {
                let kind = Kind {
                    has_set: true,
                    is_outside_second,
                    set: *tree_sets.get(set).ok_or("no set of categories")?,
                };
                (0.0, false, kind, first, second)
            }
        };
        let column = self.columns.index_of(Column {
            feature: split.feature,
            missing: split.missing,
            is_negated,
        });
        let wide = Wide {
            key: key_of(threshold),
            column,
            first: first_number,
            kind,
        };
        Ok((wide, first, second))
    }

    /// The key of a leaf: of its value, or of the number of its vector.
    fn leaf(&mut self, node: &Described, tree: &Tree, class_count: usize) -> Result<u32, String> {
        match node.kind {
            NodeKind::Leaf(value) => Ok(key_of_leaf(value as f32)),
            NodeKind::Vector(start) => {
                let number = u32::try_from(self.vectors.len() / class_count).ok();
                let key = number.and_then(key_of_vector);
                let key = key.ok_or_else(|| "too many leaves".to_owned())?;
                let values = tree
                    .vectors
                    .get(start..start + class_count)
                    .unwrap_or_default();
                self.vectors
                    .extend(values.iter().map(|&value| value as f32));
                Ok(key)
            }
            NodeKind::Split(_) => Err("a split among the leaves".to_owned()),
        }
    }

    fn nodes(&self) -> Nodes {
        let largest = self
            .trees
            .iter()
            .map(|tree| tree.node_count)
            .max()
            .unwrap_or(0);
        let needed = largest.max(self.columns.count());
        if needed <= u8::WINDOW {
            Nodes::Small(self.narrow())
        } else if needed <= u16::WINDOW {
            Nodes::Medium(self.narrow())
        } else {
            Nodes::Large(self.narrow())
        }
    }

    fn row_nodes(&self) -> Option<Vec<Node<u16>>> {
        let needed = self.nodes.len().max(self.columns.count());
        if needed > u16::WINDOW {
            return None;
        }
        let mut nodes = self.narrow::<u16>();
        for tree in &self.trees {
            let end = tree.start + tree.node_count;
            for node in nodes.get_mut(tree.start..end).unwrap_or_default() {
                node.first = u16::from_usize(tree.start + node.first.to_usize());
            }
        }
        Some(nodes)
    }

    /// The nodes with narrow indexes, and as many more behind as a window over the last tree needs.
    fn narrow<I: Index>(&self) -> Vec<Node<I>> {
        let leaf_column = self.columns.count() - 1;
        let mut nodes: Vec<Node<I>> = Vec::with_capacity(self.nodes.len() + I::WINDOW);
        nodes.extend(self.nodes.iter().map(|wide| Node {
            key: wide.key,
            column: I::from_usize(wide.column.min(leaf_column)),
            first: I::from_usize(wide.first),
        }));
        nodes.resize(nodes.len() + I::WINDOW, Node::default());
        nodes
    }

    fn kinds(&self) -> Vec<Kind> {
        if self.trees.iter().any(|tree| tree.has_sets) {
            self.nodes.iter().map(|wide| wide.kind).collect()
        } else {
            Vec::new()
        }
    }
}

/// Follows splits that send all rows one way. The route is none at a leaf.
fn resolve(tree: &Tree, mut index: usize) -> Result<(&Described, Option<Route>), String> {
    // Each node is visited at most once, as the tree was checked.
    for _ in 0..=tree.nodes.len() {
        let node = tree.nodes.get(index).ok_or("a child outside of the tree")?;
        let NodeKind::Split(split) = &node.kind else {
            return Ok((node, None));
        };
        match route(split) {
            Route::Always(child) => index = child,
            other => return Ok((node, Some(other))),
        }
    }
    Err("a circle of nodes".to_owned())
}

/// The one comparison that decides a split.
fn route(split: &Split) -> Route {
    let (left, right) = (split.left, split.right);
    let is_default_left = split.is_default_left;
    // `below` holds what is less than the threshold, or equal to it if `is_below_closed`.
    let (threshold, below, above, is_below_closed, is_default_below) = match split.test {
        Test::Less(threshold) => (threshold, left, right, false, is_default_left),
        Test::LessOrEqual(threshold) => (threshold, left, right, true, is_default_left),
        Test::Greater(threshold) => (threshold, right, left, true, !is_default_left),
        Test::GreaterOrEqual(threshold) => (threshold, right, left, false, !is_default_left),
        Test::Within(set) | Test::Without(set) => {
            let (inside, outside) = match split.test {
                Test::Within(_) => (left, right),
                _ => (right, left),
            };
            let default = if is_default_left { left } else { right };
            let is_outside_second = default == inside;
            return Route::Member {
                set,
                is_outside_second,
                first: if is_outside_second { inside } else { outside },
                second: if is_outside_second { outside } else { inside },
            };
        }
    };
    if is_below_closed && threshold == f64::INFINITY {
        // Everything is below but what is missing.
        return match is_default_below {
            true => Route::Always(below),
            false => Route::Compare {
                threshold: f32::NEG_INFINITY,
                is_negated: false,
                first: above,
                second: below,
            },
        };
    }
    // The least 32-bit value that is above.
    let least_above = match is_below_closed {
        true => rounded_down(threshold).next_up(),
        false => rounded_up(threshold),
    };
    if is_default_below {
        return Route::Compare {
            threshold: least_above,
            is_negated: false,
            first: below,
            second: above,
        };
    }
    if least_above == f32::NEG_INFINITY {
        return Route::Always(above);
    }
    // What is below the threshold, negated, is at least the negated greatest value below.
    Route::Compare {
        threshold: -least_above.next_down(),
        is_negated: true,
        first: above,
        second: below,
    }
}

/// The greatest 32-bit value that is not above.
fn rounded_down(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) > value {
        nearest.next_down()
    } else {
        nearest
    }
}

/// The least 32-bit value that is not below.
fn rounded_up(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) < value {
        nearest.next_up()
    } else {
        nearest
    }
}
