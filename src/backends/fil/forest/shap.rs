//! Shapley values of a row's features, by the path-dependent algorithm of Lundberg et al.,
//! "Consistent individualized feature attribution for tree ensembles" (2018), algorithm 2.

use super::columns::clean;
use super::model::{Forest, NodeKind, Split, Test, Tree};
use super::set::{Set, Sets};

/// Deeper trees are refused, as by upstream: the values would not be accurate.
pub const DEPTH_MAX: usize = 32;

/// A forest whose nodes have weights.
pub struct Shap {
    forest: Forest,
    /// Sets of the forest, and where those of each tree are.
    sets: Sets,
    tree_sets: Vec<Vec<Set>>,
    scales: Vec<f64>,
    /// The mean answer per class.
    biases: Vec<f64>,
}

/// A feature on the way to a leaf: how many of the coalitions without it, or with it, come here.
#[derive(Clone, Copy, Default)]
struct Element {
    feature: Option<usize>,
    zero: f64,
    one: f64,
    weight: f64,
}

/// A way: its elements and how many they are.
#[derive(Clone)]
struct Way {
    elements: [Element; DEPTH_MAX + 2],
    len: usize,
}

/// What the traversal of one tree by one row needs.
struct Walker<'a> {
    shap: &'a Shap,
    tree: &'a Tree,
    sets: &'a [Set],
    row: &'a [f32],
    values: &'a mut [f64],
}

impl Shap {
    /// # Errors
    /// If nodes have no weights, or a tree is too deep.
    pub fn new(forest: &Forest) -> Result<Shap, String> {
        let mut shap = Shap {
            sets: Sets::default(),
            tree_sets: Vec::with_capacity(forest.trees.len()),
            scales: Vec::new(),
            biases: vec![0.0; forest.class_count],
            forest: forest.clone(),
        };
        shap.scales = forest
            .trees_per_class()
            .into_iter()
            .map(|count| {
                if forest.is_averaged {
                    1.0 / count.max(1) as f64
                } else {
                    1.0
                }
            })
            .collect();
        for (index, tree) in forest.trees.iter().enumerate() {
            let reached = check(tree).map_err(|what| format!("tree {index}: {what}"))?;
            let added = tree.sets.iter().map(|set| shap.sets.add(set));
            let added = added.collect::<Result<Vec<Set>, String>>()?;
            shap.tree_sets.push(added);
            shap.add_bias(tree, &reached);
        }
        for (bias, base) in shap.biases.iter_mut().zip(&forest.base_scores) {
            *bias += base;
        }
        Ok(shap)
    }

    /// Values per row: for each class one per feature, and the bias.
    pub fn width(&self) -> usize {
        self.forest.class_count * (self.forest.feature_count + 1)
    }

    /// Writes the values of the row, which together are its sums before the link function.
    pub fn explain(&self, row: &[f32], values: &mut [f64]) {
        values.fill(0.0);
        for (tree, sets) in self.forest.trees.iter().zip(&self.tree_sets) {
            let way = Way {
                elements: [Element::default(); DEPTH_MAX + 2],
                len: 0,
            };
            let mut walker = Walker {
                shap: self,
                tree,
                sets,
                row,
                values,
            };
            walker.visit(0, way, 1.0, 1.0, None);
        }
        let stride = self.forest.feature_count + 1;
        for (values, bias) in values.chunks_mut(stride).zip(&self.biases) {
            if let Some(last) = values.last_mut() {
                *last = *bias;
            }
        }
    }

    fn add_bias(&mut self, tree: &Tree, reached: &[usize]) {
        let Some(root) = tree.nodes.first() else {
            return;
        };
        // Files may have nodes that belong to no tree any more.
        for node in reached.iter().filter_map(|&index| tree.nodes.get(index)) {
            let share = node.cover / root.cover;
            match node.kind {
                NodeKind::Leaf(value) => {
                    let class = tree.class.unwrap_or(0);
                    let bias = self.biases.get_mut(class).zip(self.scales.get(class));
                    if let Some((bias, scale)) = bias {
                        *bias += share * value * scale;
                    }
                }
                NodeKind::Vector(start) => {
                    let values = tree.vectors.get(start..).unwrap_or_default();
                    let places = self.biases.iter_mut().zip(&self.scales);
                    for ((bias, scale), value) in places.zip(values) {
                        *bias += share * value * scale;
                    }
                }
                NodeKind::Split(_) => {}
            }
        }
    }
}

/// The nodes of the tree, if they have weights and it is not too deep.
fn check(tree: &Tree) -> Result<Vec<usize>, String> {
    let mut reached = Vec::new();
    let mut open = vec![(0, 0)];
    while let Some((index, depth)) = open.pop() {
        let node = tree.nodes.get(index).ok_or("a child outside of the tree")?;
        if !(node.cover.is_finite() && node.cover >= 0.0) || (index == 0 && node.cover == 0.0) {
            return Err("the model has no node statistics, which Shapley values need".to_owned());
        }
        if depth > DEPTH_MAX {
            return Err(format!(
                "deeper than {DEPTH_MAX}, the most for Shapley values"
            ));
        }
        reached.push(index);
        if let NodeKind::Split(split) = &node.kind {
            open.push((split.left, depth + 1));
            open.push((split.right, depth + 1));
        }
    }
    Ok(reached)
}

impl Walker<'_> {
    /// Follows both children of a node; no deeper than [`DEPTH_MAX`].
    fn visit(&mut self, index: usize, mut way: Way, zero: f64, one: f64, feature: Option<usize>) {
        way.extend(zero, one, feature);
        let Some(node) = self.tree.nodes.get(index) else {
            return;
        };
        let NodeKind::Split(split) = &node.kind else {
            return self.add(&way, &node.kind);
        };
        let (hot, cold) = match self.goes_left(split) {
            true => (split.left, split.right),
            false => (split.right, split.left),
        };
        let (mut known_zero, mut known_one) = (1.0, 1.0);
        let known = way.elements[1..way.len.max(1)]
            .iter()
            .position(|element| element.feature == Some(split.feature));
        if let Some(place) = known {
            let element = way.elements[place + 1];
            (known_zero, known_one) = (element.zero, element.one);
            way.unwind(place + 1);
        }
        let share = |child: usize| {
            let cover = self.tree.nodes.get(child).map_or(0.0, |child| child.cover);
            if node.cover > 0.0 {
                cover / node.cover
            } else {
                0.0
            }
        };
        let (hot_share, cold_share) = (share(hot), share(cold));
        let feature = Some(split.feature);
        self.visit(hot, way.clone(), known_zero * hot_share, known_one, feature);
        self.visit(cold, way, known_zero * cold_share, 0.0, feature);
    }

    fn add(&mut self, way: &Way, leaf: &NodeKind) {
        let stride = self.shap.forest.feature_count + 1;
        for place in 1..way.len {
            let element = way.elements[place];
            let Some(feature) = element.feature else {
                continue;
            };
            let weight = way.unwound_sum(place) * (element.one - element.zero);
            let mut add = |class: usize, value: f64| {
                let scale = self.shap.scales.get(class).copied().unwrap_or(1.0);
                if let Some(sum) = self.values.get_mut(class * stride + feature) {
                    *sum += weight * value * scale;
                }
            };
            match *leaf {
                NodeKind::Leaf(value) => add(self.tree.class.unwrap_or(0), value),
                NodeKind::Vector(start) => {
                    let values = self.tree.vectors.get(start..).unwrap_or_default();
                    let classes = 0..self.shap.forest.class_count;
                    for (class, &value) in classes.zip(values) {
                        add(class, value);
                    }
                }
                NodeKind::Split(_) => {}
            }
        }
    }

    fn goes_left(&self, split: &Split) -> bool {
        let value = self.row.get(split.feature).copied().unwrap_or(f32::NAN);
        let value = clean(split.missing, value);
        if value.is_nan() {
            return split.is_default_left;
        }
        let wide = f64::from(value);
        let contains = |set: usize| {
            let set = self.sets.get(set);
            set.is_some_and(|&set| self.shap.sets.contains(set, value))
        };
        match split.test {
            Test::Less(threshold) => wide < threshold,
            Test::LessOrEqual(threshold) => wide <= threshold,
            Test::Greater(threshold) => wide > threshold,
            Test::GreaterOrEqual(threshold) => wide >= threshold,
            Test::Within(set) => contains(set),
            Test::Without(set) => !contains(set),
        }
    }
}

impl Way {
    /// Grows the way by one feature (`EXTEND`).
    fn extend(&mut self, zero: f64, one: f64, feature: Option<usize>) {
        let len = self.len;
        self.elements[len] = Element {
            feature,
            zero,
            one,
            weight: if len == 0 { 1.0 } else { 0.0 },
        };
        let total = (len + 1) as f64;
        for index in (0..len).rev() {
            let weight = self.elements[index].weight;
            self.elements[index + 1].weight += one * weight * (index + 1) as f64 / total;
            self.elements[index].weight = zero * weight * (len - index) as f64 / total;
        }
        self.len = len + 1;
    }

    /// Undoes the growth by the element at `place` (`UNWIND`).
    fn unwind(&mut self, place: usize) {
        let last = self.len - 1;
        let Element { zero, one, .. } = self.elements[place];
        let mut next = self.elements[last].weight;
        let total = (last + 1) as f64;
        for index in (0..last).rev() {
            if one != 0.0 {
                let kept = self.elements[index].weight;
                self.elements[index].weight = next * total / ((index + 1) as f64 * one);
                next = kept - self.elements[index].weight * zero * (last - index) as f64 / total;
            } else if zero != 0.0 {
                self.elements[index].weight *= total / (zero * (last - index) as f64);
            }
        }
        for index in place..last {
            let Element {
                feature, zero, one, ..
            } = self.elements[index + 1];
            let element = &mut self.elements[index];
            (element.feature, element.zero, element.one) = (feature, zero, one);
        }
        self.len = last;
    }

    /// The sum of the weights that were left if the element at `place` were undone.
    fn unwound_sum(&self, place: usize) -> f64 {
        let last = self.len - 1;
        let Element { zero, one, .. } = self.elements[place];
        let mut next = self.elements[last].weight;
        let total = (last + 1) as f64;
        let mut sum = 0.0;
        for index in (0..last).rev() {
            if one != 0.0 {
                let weight = next * total / ((index + 1) as f64 * one);
                sum += weight;
                let rest = (last - index) as f64 / total;
                next = self.elements[index].weight - weight * zero * rest;
            } else if zero != 0.0 {
                sum += self.elements[index].weight * total / (zero * (last - index) as f64);
            }
        }
        sum
    }
}
