//! A forest as model files describe it, whatever their format, and the checks that all need.

use super::Link;

/// Outputs per row. No known model has more, and each costs memory per row.
pub const CLASSES_MAX: usize = 1 << 16;

/// A description of a forest. [`check`](Self::check) says whether it can be traversed.
#[derive(Clone, Debug, PartialEq)]
pub struct Forest {
    /// Columns of an input row.
    pub feature_count: usize,
    /// Values per row: 1 for regressors and binary classifiers.
    pub class_count: usize,
    pub task: Task,
    pub trees: Vec<Tree>,
    /// Whether sums are divided by the number of trees that add to them.
    pub is_averaged: bool,
    /// What is added to the sums of the trees, one per class.
    pub base_scores: Vec<f64>,
    pub link: Link,
}

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Binary,
    Multiclass,
    /// Regression, ranking and anomaly scores.
    Regression,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    /// The class that the leaves add to; none if each leaf has a value per class.
    pub class: Option<usize>,
    /// The root is the first.
    pub nodes: Vec<Node>,
    /// Values of leaves that have one per class.
    pub vectors: Vec<f64>,
    /// Categories of categorical splits.
    pub sets: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub kind: NodeKind,
    /// Weight of the training rows that came through here; NaN if the file does not say.
    pub cover: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    Leaf(f64),
    /// Where the leaf's values begin in [`Tree::vectors`].
    Vector(usize),
    Split(Split),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    pub feature: usize,
    pub test: Test,
    /// Where rows go for which the test holds.
    pub left: usize,
    pub right: usize,
    /// Where rows go whose value is missing.
    pub is_default_left: bool,
    pub missing: Missing,
}

/// What sends a row to the left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Test {
    Less(f64),
    LessOrEqual(f64),
    Greater(f64),
    GreaterOrEqual(f64),
    /// The value is a category of this set ([`Tree::sets`]).
    Within(usize),
    /// The value is no category of this set.
    Without(usize),
}

/// Which values are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Missing {
    Nan,
    /// NaN, and what LightGBM counts as zero.
    Zero,
    /// None: NaN counts as zero.
    Never,
}

impl Forest {
    /// Whether the forest can be compiled and traversed: every tree is a tree, whose nodes are all
    /// reached once, and every number that refers to something refers to what is there.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn check(&self) -> Result<(), String> {
        if self.class_count == 0 || self.class_count > CLASSES_MAX {
            return Err(format!(
                "{} classes; 1 to {CLASSES_MAX} are supported",
                self.class_count
            ));
        }
        if self.base_scores.len() != self.class_count {
            return Err(format!(
                "{} base scores for {} classes",
                self.base_scores.len(),
                self.class_count
            ));
        }
        if let Some(score) = self.base_scores.iter().find(|score| !score.is_finite()) {
            return Err(format!("base score {score} is not finite"));
        }
        for (index, tree) in self.trees.iter().enumerate() {
            tree.check(self.feature_count, self.class_count)
                .map_err(|what| format!("tree {index}: {what}"))?;
        }
        Ok(())
    }

    /// Trees that add to each class.
    pub fn trees_per_class(&self) -> Vec<usize> {
        let mut counts = vec![0; self.class_count];
        for tree in &self.trees {
            match tree.class {
                None => counts.iter_mut().for_each(|count| *count += 1),
                Some(class) => {
                    if let Some(count) = counts.get_mut(class) {
                        *count += 1;
                    }
                }
            }
        }
        counts
    }
}

impl Tree {
    fn check(&self, feature_count: usize, class_count: usize) -> Result<(), String> {
        if let Some(class) = self.class.filter(|&class| class >= class_count) {
            return Err(format!("class {class} of {class_count}"));
        }
        if self.nodes.is_empty() {
            return Err("no nodes".to_owned());
        }
        if u32::try_from(self.nodes.len()).is_err() {
            return Err(format!("{} nodes", self.nodes.len()));
        }
        let mut is_reached = vec![false; self.nodes.len()];
        let mut open = vec![0];
        while let Some(index) = open.pop() {
            let (Some(node), Some(reached)) = (self.nodes.get(index), is_reached.get_mut(index))
            else {
                return Err(format!("a child is node {index} of {}", self.nodes.len()));
            };
            if std::mem::replace(reached, true) {
                return Err(format!("node {index} is reached twice"));
            }
            match &node.kind {
                NodeKind::Leaf(value) => self.check_leaf(index, *value)?,
                NodeKind::Vector(start) => self.check_vector(index, *start, class_count)?,
                NodeKind::Split(split) => {
                    self.check_split(index, split, feature_count)?;
                    open.push(split.left);
                    open.push(split.right);
                }
            }
        }
        Ok(())
    }

    fn check_leaf(&self, index: usize, value: f64) -> Result<(), String> {
        if self.class.is_none() {
            return Err(format!("leaf {index} has no value per class"));
        }
        if value.is_nan() {
            return Err(format!("leaf {index} is NaN"));
        }
        Ok(())
    }

    fn check_vector(&self, index: usize, start: usize, class_count: usize) -> Result<(), String> {
        if self.class.is_some() {
            return Err(format!("leaf {index} has several values"));
        }
        let end = start.checked_add(class_count);
        match end.and_then(|end| self.vectors.get(start..end)) {
            None => Err(format!("leaf {index} has fewer than {class_count} values")),
            Some(values) if values.iter().any(|value| value.is_nan()) => {
                Err(format!("leaf {index} is NaN"))
            }
            Some(_) => Ok(()),
        }
    }

    fn check_split(&self, index: usize, split: &Split, feature_count: usize) -> Result<(), String> {
        if split.feature >= feature_count {
            return Err(format!(
                "node {index} tests feature {} of {feature_count}",
                split.feature
            ));
        }
        match split.test {
            Test::Less(threshold)
            | Test::LessOrEqual(threshold)
            | Test::Greater(threshold)
            | Test::GreaterOrEqual(threshold) => match threshold.is_nan() {
                true => Err(format!("node {index} has the threshold NaN")),
                false => Ok(()),
            },
            Test::Within(set) | Test::Without(set) => match self.sets.get(set) {
                None => Err(format!("node {index} has no set of categories")),
                Some(_) => Ok(()),
            },
        }
    }
}
