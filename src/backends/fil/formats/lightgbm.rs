//! LightGBM's text files.

use std::collections::HashMap;
use std::str::FromStr;

use crate::forest::Link;
use crate::forest::model::{CLASSES_MAX, Forest, Missing, Node, NodeKind, Split, Task, Test, Tree};

/// `key=value` lines of the head, or of a tree.
type Section<'t> = HashMap<&'t str, &'t str>;

/// # Errors
/// What is wrong with the file.
pub fn read(bytes: &[u8]) -> Result<Forest, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "the file is not UTF-8".to_owned())?;
    let mut lines = text.lines().map(str::trim_end);
    if lines.next() != Some("tree") {
        return Err("not a text model of LightGBM: the first line is not 'tree'".to_owned());
    }
    let (head, sections) = sections(lines)?;
    let class_count = positive(&head, "num_class")?;
    if class_count > CLASSES_MAX {
        return Err(format!(
            "num_class is {class_count}; at most {CLASSES_MAX} are supported"
        ));
    }
    let trees_per_iteration = match head.get("num_tree_per_iteration") {
        Some(_) => positive(&head, "num_tree_per_iteration")?,
        None => class_count,
    };
    let feature_max: usize = parse("max_feature_idx", required(&head, "max_feature_idx")?)?;
    let feature_count = feature_max
        .checked_add(1)
        .ok_or("max_feature_idx is too large")?;
    if let Some(sizes) = head.get("tree_sizes")
        && sizes.split_ascii_whitespace().count() != sections.len()
    {
        return Err(format!(
            "tree_sizes has {} entries for {} trees",
            sizes.split_ascii_whitespace().count(),
            sections.len()
        ));
    }
    let (link, task) = objective(head.get("objective").copied(), class_count)?;
    let mut trees = Vec::with_capacity(sections.len());
    for (index, section) in sections.iter().enumerate() {
        let mut tree = tree(section).map_err(|what| format!("tree {index}: {what}"))?;
        tree.class = Some(index % trees_per_iteration);
        trees.push(tree);
    }
    Ok(Forest {
        feature_count,
        class_count,
        task,
        trees,
        is_averaged: head.contains_key("average_output"),
        base_scores: vec![0.0; class_count],
        link,
    })
}

/// The head and the trees. What follows the trees is of no interest.
fn sections<'t>(
    lines: impl Iterator<Item = &'t str>,
) -> Result<(Section<'t>, Vec<Section<'t>>), String> {
    let mut head = Section::new();
    let mut trees: Vec<Section<'t>> = Vec::new();
    for line in lines {
        // The second is how files of the first versions end.
        if line == "end of trees" || line == "feature importances:" {
            return Ok((head, trees));
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        if key == "Tree" {
            trees.push(Section::new());
        } else {
            trees.last_mut().unwrap_or(&mut head).insert(key, value);
        }
    }
    Err("the file is cut off: it has no line 'end of trees'".to_owned())
}

fn objective(text: Option<&str>, class_count: usize) -> Result<(Link, Task), String> {
    let mut words = text.unwrap_or("custom").split_ascii_whitespace();
    let name = words.next().unwrap_or("custom");
    let options: Vec<&str> = words.collect();
    let sigmoid = || -> Result<Link, String> {
        let option = options
            .iter()
            .find_map(|option| option.strip_prefix("sigmoid:"));
        let alpha: f64 = parse("sigmoid", option.unwrap_or("1"))?;
        match alpha > 0.0 && alpha.is_finite() {
            true => Ok(Link::Sigmoid(alpha)),
            false => Err(format!("sigmoid is {alpha}")),
        }
    };
    let (link, task) = match name {
        "binary" => (sigmoid()?, Task::Binary),
        "cross_entropy" | "xentropy" => (Link::Sigmoid(1.0), Task::Binary),
        "cross_entropy_lambda" | "xentlambda" => (Link::LogarithmOnePlusExponential, Task::Binary),
        "multiclass" | "softmax" => (Link::Softmax, Task::Multiclass),
        "multiclassova" | "multiclass_ova" | "ova" | "ovr" => (sigmoid()?, Task::Multiclass),
        "poisson" | "gamma" | "tweedie" => (Link::Exponential, Task::Regression),
        "regression"
        | "regression_l2"
        | "l2"
        | "mean_squared_error"
        | "mse"
        | "l2_root"
        | "root_mean_squared_error"
        | "rmse"
        | "regression_l1"
        | "l1"
        | "mean_absolute_error"
        | "mae"
        | "huber"
        | "fair"
        | "quantile"
        | "mape"
        | "mean_absolute_percentage_error" => match options.contains(&"sqrt") {
            true => (Link::SignedSquare, Task::Regression),
            false => (Link::Identity, Task::Regression),
        },
        "lambdarank" | "rank_xendcg" | "xendcg" | "xe_ndcg" | "xe_ndcg_mart" | "xendcg_mart"
        | "custom" | "none" => (Link::Identity, Task::Regression),
        _ => return Err(format!("Unknown objective name: \"{name}\"")),
    };
    let task = if class_count > 1 {
        Task::Multiclass
    } else {
        task
    };
    Ok((link, task))
}

fn tree(section: &Section<'_>) -> Result<Tree, String> {
    if section.get("is_linear").is_some_and(|&value| value != "0") {
        return Err("its leaves are linear models, which are not supported".to_owned());
    }
    let leaf_count = positive(section, "num_leaves")?;
    let values: Vec<f64> = list(section, "leaf_value", leaf_count)?;
    let covers = counts(section, "leaf_count", leaf_count)?;
    let leaves = values.into_iter().zip(covers).map(|(value, cover)| Node {
        kind: NodeKind::Leaf(value),
        cover,
    });
    let split_count = leaf_count - 1;
    if split_count == 0 {
        return Ok(Tree {
            nodes: leaves.collect(),
            ..Tree::default()
        });
    }
    let features: Vec<i64> = list(section, "split_feature", split_count)?;
    let thresholds: Vec<f64> = list(section, "threshold", split_count)?;
    let kinds: Vec<u8> = match section.contains_key("decision_type") {
        true => list(section, "decision_type", split_count)?,
        false => vec![0; split_count],
    };
    let lefts: Vec<i64> = list(section, "left_child", split_count)?;
    let rights: Vec<i64> = list(section, "right_child", split_count)?;
    let covers = counts(section, "internal_count", split_count)?;
    let sets = sets(section)?;
    let mut nodes = Vec::with_capacity(split_count + leaf_count);
    let rows = features
        .iter()
        .zip(&thresholds)
        .zip(&kinds)
        .zip(lefts.iter().zip(&rights));
    for ((((&feature, &threshold), &kind), (&left, &right)), cover) in rows.zip(covers) {
        let feature = usize::try_from(feature).map_err(|_| format!("feature {feature}"))?;
        let split = split(feature, threshold, kind, sets.len())?;
        nodes.push(Node {
            kind: NodeKind::Split(Split {
                left: child(left, split_count, leaf_count)?,
                right: child(right, split_count, leaf_count)?,
                ..split
            }),
            cover,
        });
    }
    nodes.extend(leaves);
    Ok(Tree {
        nodes,
        sets,
        ..Tree::default()
    })
}

/// A split, still without children. Bits of `kind`: 1 categorical, 2 default left, 4 zero is
/// missing, 8 NaN is missing.
fn split(feature: usize, threshold: f64, kind: u8, set_count: usize) -> Result<Split, String> {
    let is_categorical = kind & 1 != 0;
    let missing = match (kind >> 2) & 3 {
        _ if is_categorical => Missing::Nan,
        0 => Missing::Never,
        1 => Missing::Zero,
        2 => Missing::Nan,
        _ => return Err(format!("decision_type {kind}")),
    };
    let test = if is_categorical {
        // Saturates, and NaN becomes 0.
        let set = threshold as usize;
        if threshold < 0.0 || set >= set_count {
            return Err(format!("categories {threshold} of {set_count}"));
        }
        Test::Within(set)
    } else {
        Test::LessOrEqual(threshold)
    };
    Ok(Split {
        feature,
        test,
        left: 0,
        right: 0,
        // NaN is in no set, so it goes right.
        is_default_left: !is_categorical && kind & 2 != 0,
        missing,
    })
}

/// Children below zero are leaves, which follow the splits here.
fn child(number: i64, split_count: usize, leaf_count: usize) -> Result<usize, String> {
    let (index, count, shift) = match number {
        0.. => (usize::try_from(number), split_count, 0),
        _ => (usize::try_from(!number), leaf_count, split_count),
    };
    match index {
        Ok(index) if index < count => Ok(index + shift),
        _ => Err(format!("child {number}")),
    }
}

fn sets(section: &Section<'_>) -> Result<Vec<Vec<u32>>, String> {
    let count: usize = match section.get("num_cat") {
        Some(text) => parse("num_cat", text)?,
        None => 0,
    };
    if count == 0 {
        return Ok(Vec::new());
    }
    let bounds_count = count.checked_add(1).ok_or("num_cat is too large")?;
    let bounds: Vec<usize> = list(section, "cat_boundaries", bounds_count)?;
    let words_count = bounds.last().copied().unwrap_or(0);
    let words: Vec<u32> = list(section, "cat_threshold", words_count)?;
    let mut sets = Vec::with_capacity(count);
    for pair in bounds.windows(2) {
        let &[start, end] = pair else {
            continue;
        };
        let words = words
            .get(start..end)
            .ok_or("cat_boundaries are not in order")?;
        let mut set = Vec::new();
        for (place, &word) in words.iter().enumerate() {
            let first = u32::try_from(place * 32).map_err(|_| "too many categories".to_owned())?;
            set.extend(
                (0..32)
                    .filter(|bit| word >> bit & 1 == 1)
                    .map(|bit| first + bit),
            );
        }
        sets.push(set);
    }
    Ok(sets)
}

/// Numbers of training rows, or NaN if the file has none.
fn counts(section: &Section<'_>, key: &str, count: usize) -> Result<Vec<f64>, String> {
    match section.get(key).is_some_and(|text| !text.is_empty()) {
        true => list(section, key, count),
        false => Ok(vec![f64::NAN; count]),
    }
}

fn required<'t>(section: &Section<'t>, key: &str) -> Result<&'t str, String> {
    section
        .get(key)
        .copied()
        .ok_or_else(|| format!("Ill-formed LightGBM model file: need {key}"))
}

fn positive(section: &Section<'_>, key: &str) -> Result<usize, String> {
    match parse(key, required(section, key)?)? {
        0 => Err(format!("{key} is 0")),
        number => Ok(number),
    }
}

fn list<T: FromStr>(section: &Section<'_>, key: &str, count: usize) -> Result<Vec<T>, String> {
    let text = required(section, key)?;
    let items = text.split_ascii_whitespace().map(|item| parse(key, item));
    let items = items.collect::<Result<Vec<T>, String>>()?;
    match items.len() == count {
        true => Ok(items),
        false => Err(format!(
            "{key} has {} entries instead of {count}",
            items.len()
        )),
    }
}

fn parse<T: FromStr>(key: &str, text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| {
        format!(
            "{key} has '{}', which is no such number",
            text.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives() {
        for (text, classes, expected) in [
            (None, 1, Some((Link::Identity, Task::Regression))),
            (
                Some("binary sigmoid:2"),
                1,
                Some((Link::Sigmoid(2.0), Task::Binary)),
            ),
            (Some("binary sigmoid:0"), 1, None),
            (Some("binary sigmoid:x"), 1, None),
            (
                Some("multiclass num_class:3"),
                3,
                Some((Link::Softmax, Task::Multiclass)),
            ),
            (
                Some("regression sqrt"),
                1,
                Some((Link::SignedSquare, Task::Regression)),
            ),
            (
                Some("tweedie"),
                1,
                Some((Link::Exponential, Task::Regression)),
            ),
            (Some("mine"), 1, None),
        ] {
            assert_eq!(objective(text, classes).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn children() {
        for (number, expected) in [
            (0, Some(0)),
            (2, Some(2)),
            (3, None),
            (-1, Some(3)),
            (-4, Some(6)),
            (-5, None),
            (i64::MIN, None),
            (i64::MAX, None),
        ] {
            assert_eq!(child(number, 3, 4).ok(), expected, "{number}");
        }
    }
}
