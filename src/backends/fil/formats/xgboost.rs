//! XGBoost's models, in JSON and in UBJSON: one structure in two notations.

use conch_backend_sdk::serde_json;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use super::ubjson;
use crate::forest::Link;
use crate::forest::model::{CLASSES_MAX, Forest, Missing, Node, NodeKind, Split, Task, Test, Tree};

/// # Errors
/// What is wrong with the file.
pub fn read_json(bytes: &[u8]) -> Result<Forest, String> {
    let file = serde_json::from_slice(bytes)
        .map_err(|error| format!("not a JSON model of XGBoost: {error}"))?;
    forest(&file)
}

/// # Errors
/// What is wrong with the file.
pub fn read_ubjson(bytes: &[u8]) -> Result<Forest, String> {
    let file = ubjson::from_slice(bytes)
        .map_err(|error| format!("not a UBJSON model of XGBoost: {error}"))?;
    forest(&file)
}

#[derive(Deserialize)]
struct File {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    learner_model_param: LearnerParam,
    gradient_booster: Booster,
    objective: Objective,
}

/// Numbers are texts in these.
#[derive(Deserialize)]
struct LearnerParam {
    base_score: String,
    num_class: String,
    num_feature: String,
    num_target: Option<String>,
}

#[derive(Deserialize)]
struct Objective {
    name: String,
}

#[derive(Deserialize)]
struct Booster {
    name: String,
    model: Option<Model>,
    /// The trees of a `dart` booster, and what each is multiplied by.
    gbtree: Option<Box<Booster>>,
    #[serde(default)]
    weight_drop: Vec<f32>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    trees: Vec<FileTree>,
    /// The class of each tree.
    #[serde(default)]
    tree_info: Vec<i64>,
}

#[derive(Deserialize)]
struct FileTree {
    #[serde(default)]
    tree_param: TreeParam,
    left_children: Vec<i64>,
    right_children: Vec<i64>,
    split_indices: Vec<i64>,
    /// Thresholds, and values of leaves.
    split_conditions: Vec<f32>,
    default_left: Vec<Flag>,
    /// 1 at categorical splits.
    #[serde(default)]
    split_type: Vec<i64>,
    #[serde(default)]
    categories: Vec<i64>,
    #[serde(default)]
    categories_nodes: Vec<i64>,
    #[serde(default)]
    categories_segments: Vec<i64>,
    #[serde(default)]
    categories_sizes: Vec<i64>,
    #[serde(default)]
    sum_hessian: Vec<f32>,
}

#[derive(Default, Deserialize)]
struct TreeParam {
    size_leaf_vector: Option<String>,
}

/// A boolean, or a number in files of later versions.
struct Flag(bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Flags;
        impl Visitor<'_> for Flags {
            type Value = Flag;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("true, false, 1 or 0")
            }

            fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Flag, E> {
                Ok(Flag(value))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Flag, E> {
                Ok(Flag(value != 0))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Flag, E> {
                match value {
                    0 | 1 => Ok(Flag(value == 1)),
                    _ => Err(E::custom(format!("{value} is no flag"))),
                }
            }
        }
        deserializer.deserialize_any(Flags)
    }
}

fn forest(file: &File) -> Result<Forest, String> {
    let learner = &file.learner;
    let param = &learner.learner_model_param;
    let target_count = param
        .num_target
        .as_deref()
        .map_or(Ok(1), |text| number("num_target", text))?;
    if target_count > 1 {
        return Err("Multi-target model not supported".to_owned());
    }
    let class_count = number("num_class", &param.num_class)?.max(1);
    if class_count > CLASSES_MAX {
        return Err(format!(
            "num_class is {class_count}; at most {CLASSES_MAX} are supported"
        ));
    }
    let (link, task) = objective(&learner.objective.name, class_count)?;
    let (model, weights) = booster(&learner.gradient_booster)?;
    if model.trees.len() != model.tree_info.len() {
        return Err(format!(
            "{} trees, and classes of {}",
            model.trees.len(),
            model.tree_info.len()
        ));
    }
    let mut trees = Vec::with_capacity(model.trees.len());
    for (index, (file_tree, &class)) in model.trees.iter().zip(&model.tree_info).enumerate() {
        let place = |what: String| format!("tree {index}: {what}");
        let class = usize::try_from(class).map_err(|_| place(format!("class {class}")))?;
        let weight = weights.get(index).copied().unwrap_or(1.0);
        trees.push(tree(file_tree, class, weight).map_err(place)?);
    }
    Ok(Forest {
        feature_count: number("num_feature", &param.num_feature)?,
        class_count,
        task,
        trees,
        is_averaged: false,
        base_scores: base_scores(&param.base_score, class_count, link)?,
        link,
    })
}

/// The trees, and what each is multiplied by, if not by 1.
fn booster(booster: &Booster) -> Result<(&Model, &[f32]), String> {
    match (&*booster.name, &booster.model, &booster.gbtree) {
        ("gbtree", Some(model), _) => Ok((model, &[])),
        ("dart", _, Some(inner)) => {
            let (model, weights) = (inner.model.as_ref(), &booster.weight_drop);
            let model = model.ok_or("the booster has no model")?;
            if !weights.is_empty() && weights.len() != model.trees.len() {
                return Err(format!(
                    "{} weights for {} trees",
                    weights.len(),
                    model.trees.len()
                ));
            }
            Ok((model, weights))
        }
        ("gbtree" | "dart", ..) => Err("the booster has no model".to_owned()),
        (name, ..) => Err(format!(
            "the booster is '{name}'; gbtree and dart are supported"
        )),
    }
}

fn objective(name: &str, class_count: usize) -> Result<(Link, Task), String> {
    let link = match name {
        "multi:softmax" | "multi:softprob" => Link::Softmax,
        "reg:logistic" | "binary:logistic" => Link::Sigmoid(1.0),
        "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
            Link::Exponential
        }
        "binary:hinge" => Link::Hinge,
        "reg:squarederror"
        | "reg:linear"
        | "reg:squaredlogerror"
        | "reg:pseudohubererror"
        | "reg:absoluteerror"
        | "reg:quantileerror"
        | "reg:expectileerror"
        | "binary:logitraw"
        | "rank:pairwise"
        | "rank:ndcg"
        | "rank:map" => Link::Identity,
        _ => return Err(format!("Unrecognized XGBoost objective: {name}")),
    };
    let task = if class_count > 1 {
        Task::Multiclass
    } else if name.starts_with("binary:") {
        Task::Binary
    } else {
        Task::Regression
    };
    Ok((link, task))
}

/// Base scores as they are added to sums. Before XGBoost 3.1 it is one number, since then a list
/// in brackets with one per class.
fn base_scores(text: &str, class_count: usize, link: Link) -> Result<Vec<f64>, String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let mut scores = Vec::new();
    for part in inner.unwrap_or(text).split(',') {
        let score: f64 = part
            .trim()
            .parse()
            .map_err(|_| format!("base_score is '{text}', which is no number"))?;
        let score = match link {
            Link::Sigmoid(_) => -(1.0 / score - 1.0).ln(),
            Link::Exponential => score.ln(),
            _ => score,
        };
        scores.push(score);
    }
    if let ([score], true) = (&*scores, class_count > 1) {
        scores = vec![*score; class_count];
    }
    if let Some(score) = scores.iter().find(|score| !score.is_finite()) {
        return Err(format!(
            "base_score is '{text}', which makes {score} of every sum"
        ));
    }
    Ok(scores)
}

fn tree(file: &FileTree, class: usize, weight: f32) -> Result<Tree, String> {
    if let Some(size) = &file.tree_param.size_leaf_vector
        && number("size_leaf_vector", size)? > 1
    {
        return Err("leaves have several values; multi-target trees are not supported".to_owned());
    }
    let count = file.left_children.len();
    let (sets, sets_of_nodes) = sets(file, count)?;
    let mut nodes = Vec::with_capacity(count);
    for index in 0..count {
        nodes.push(node(file, index, weight, &sets_of_nodes)?);
    }
    Ok(Tree {
        class: Some(class),
        nodes,
        vectors: Vec::new(),
        sets,
    })
}

fn node(
    file: &FileTree,
    index: usize,
    weight: f32,
    sets_of_nodes: &[Option<usize>],
) -> Result<Node, String> {
    let left = item("left_children", &file.left_children, index)?;
    let value = item("split_conditions", &file.split_conditions, index)?;
    let cover = file
        .sum_hessian
        .get(index)
        .map_or(f64::NAN, |&sum| f64::from(sum));
    if *left == -1 {
        return Ok(Node {
            kind: NodeKind::Leaf(f64::from(value * weight)),
            cover,
        });
    }
    let right = item("right_children", &file.right_children, index)?;
    let is_categorical = file.split_type.get(index).is_some_and(|&kind| kind == 1);
    let test = if is_categorical {
        // Those in the set go right.
        let set = sets_of_nodes.get(index).copied().flatten();
        Test::Without(set.ok_or_else(|| format!("node {index} has no categories"))?)
    } else {
        Test::Less(f64::from(*value))
    };
    Ok(Node {
        kind: NodeKind::Split(Split {
            feature: reference(
                "split_indices",
                *item("split_indices", &file.split_indices, index)?,
            )?,
            test,
            left: reference("left_children", *left)?,
            right: reference("right_children", *right)?,
            is_default_left: item("default_left", &file.default_left, index)?.0,
            missing: Missing::Nan,
        }),
        cover,
    })
}

/// Lists of categories.
type Sets = Vec<Vec<u32>>;
/// The set of each node, if it has one.
type SetsOfNodes = Vec<Option<usize>>;

/// The sets of categories, and which nodes have which.
fn sets(file: &FileTree, node_count: usize) -> Result<(Sets, SetsOfNodes), String> {
    let mut sets = Vec::new();
    let mut sets_of_nodes = Vec::new();
    if file.categories_nodes.is_empty() {
        return Ok((sets, sets_of_nodes));
    }
    sets_of_nodes.resize(node_count, None);
    let mut total = 0usize;
    for (index, &node) in file.categories_nodes.iter().enumerate() {
        let segments = item("categories_segments", &file.categories_segments, index)?;
        let start = reference("categories_segments", *segments)?;
        let sizes = item("categories_sizes", &file.categories_sizes, index)?;
        let size = reference("categories_sizes", *sizes)?;
        // Segments do not overlap, so that they are no longer together than what they are cut from.
        total = total.saturating_add(size);
        let end = start
            .checked_add(size)
            .filter(|_| total <= file.categories.len());
        let categories = end
            .and_then(|end| file.categories.get(start..end))
            .ok_or_else(|| format!("categories of node {node} lie outside of the list"))?;
        let set = categories
            .iter()
            .map(|&category| u32::try_from(category).map_err(|_| format!("category {category}")))
            .collect::<Result<Vec<u32>, String>>()?;
        let place = sets_of_nodes.get_mut(reference("categories_nodes", node)?);
        *place.ok_or_else(|| format!("categories of node {node} of {node_count}"))? =
            Some(sets.len());
        sets.push(set);
    }
    Ok((sets, sets_of_nodes))
}

fn item<'l, T>(name: &str, list: &'l [T], index: usize) -> Result<&'l T, String> {
    list.get(index).ok_or_else(|| {
        format!(
            "{name} has {} entries, and none for node {index}",
            list.len()
        )
    })
}

fn reference(name: &str, number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("{name} has the number {number}"))
}

fn number(name: &str, text: &str) -> Result<usize, String> {
    text.trim()
        .parse::<u32>()
        .ok()
        .and_then(|number| usize::try_from(number).ok())
        .ok_or_else(|| format!("{name} is '{text}', which is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_scores_of_all_versions() {
        for (text, classes, link, expected) in [
            ("5E-1", 1, Link::Identity, Some(vec![0.5])),
            ("[5E-1]", 1, Link::Sigmoid(1.0), Some(vec![0.0])),
            ("0.5", 3, Link::Softmax, Some(vec![0.5; 3])),
            ("[1,2, 3]", 3, Link::Softmax, Some(vec![1.0, 2.0, 3.0])),
            ("1", 1, Link::Exponential, Some(vec![0.0])),
            ("0", 1, Link::Exponential, None),
            ("1", 1, Link::Sigmoid(1.0), None),
            ("", 1, Link::Identity, None),
            ("[", 1, Link::Identity, None),
            ("nan", 1, Link::Identity, None),
        ] {
            assert_eq!(base_scores(text, classes, link).ok(), expected, "{text}");
        }
    }

    #[test]
    fn objectives() {
        for (name, classes, expected) in [
            (
                "binary:logistic",
                1,
                Some((Link::Sigmoid(1.0), Task::Binary)),
            ),
            (
                "reg:logistic",
                1,
                Some((Link::Sigmoid(1.0), Task::Regression)),
            ),
            ("multi:softprob", 3, Some((Link::Softmax, Task::Multiclass))),
            (
                "count:poisson",
                1,
                Some((Link::Exponential, Task::Regression)),
            ),
            ("mine", 1, None),
        ] {
            assert_eq!(objective(name, classes).ok(), expected, "{name}");
        }
    }
}
