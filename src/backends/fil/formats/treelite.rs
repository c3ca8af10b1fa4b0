//! Treelite's checkpoints of version 4. Numbers are little-endian.

use super::bytes::Bytes;
use crate::forest::Link;
use crate::forest::model::{Forest, Missing, Node, NodeKind, Split, Task, Test, Tree};

/// # Errors
/// What is wrong with the file.
pub fn read(bytes: &[u8]) -> Result<Forest, String> {
    let mut reader = Reader {
        bytes: Bytes::new(bytes),
        is_double: false,
    };
    let (major, minor, patch) = (reader.int()?, reader.int()?, reader.int()?);
    if major != 4 {
        return Err(format!(
            "the checkpoint is of Treelite {major}.{minor}.{patch}; write it again with Treelite 4"
        ));
    }
    let (threshold_type, leaf_type) = (reader.bytes.byte()?, reader.bytes.byte()?);
    reader.is_double = match (threshold_type, leaf_type) {
        (2, 2) => false,
        (3, 3) => true,
        _ => {
            return Err(format!(
                "thresholds of type {threshold_type}, leaves of {leaf_type}"
            ));
        }
    };
    let tree_count = reader.size()?;
    let head = head(&mut reader)?;
    // Each tree has an entry in lists of the head, so that their number is one of the file.
    if head.class_ids.len() != tree_count || head.target_ids.len() != tree_count {
        return Err(format!(
            "{tree_count} trees, and classes of {}",
            head.class_ids.len()
        ));
    }
    let mut trees = Vec::new();
    for (index, (&class, &target)) in head.class_ids.iter().zip(&head.target_ids).enumerate() {
        let place = |what: String| format!("tree {index}: {what}");
        if !(-1..=0).contains(&target) {
            return Err(place(format!("target {target} of 1")));
        }
        let class = match class {
            -1 => None,
            _ => Some(usize::try_from(class).map_err(|_| place(format!("class {class}")))?),
        };
        trees.push(tree(&mut reader, class, head.class_count).map_err(place)?);
    }
    match reader.bytes.len() {
        0 => {}
        count => return Err(format!("{count} bytes follow the model")),
    }
    Ok(Forest {
        feature_count: head.feature_count,
        class_count: head.class_count,
        task: head.task,
        trees,
        is_averaged: head.is_averaged,
        base_scores: head.base_scores,
        link: head.link,
    })
}

struct Head {
    feature_count: usize,
    task: Task,
    is_averaged: bool,
    class_count: usize,
    target_ids: Vec<i32>,
    class_ids: Vec<i32>,
    link: Link,
    base_scores: Vec<f64>,
}

fn head(reader: &mut Reader<'_>) -> Result<Head, String> {
    let feature_count = reader.int()?;
    let feature_count =
        usize::try_from(feature_count).map_err(|_| format!("{feature_count} features"))?;
    let task = match reader.bytes.byte()? {
        0 => Task::Binary,
        2 => Task::Multiclass,
        1 | 3 | 4 => Task::Regression,
        task => return Err(format!("task {task}")),
    };
    let is_averaged = reader.flag()?;
    let target_count = reader.int()?;
    if target_count != 1 {
        return Err("Multi-target model not supported".to_owned());
    }
    let class_counts = reader.ints()?;
    let &[class_count] = &*class_counts else {
        return Err(format!(
            "{} numbers of classes for 1 target",
            class_counts.len()
        ));
    };
    let class_count = usize::try_from(class_count).map_err(|_| format!("{class_count} classes"))?;
    let leaf_shape = reader.ints()?;
    let classes_or_one = [1, i32::try_from(class_count).unwrap_or(i32::MAX)];
    if leaf_shape.len() != 2
        || leaf_shape.first() != Some(&1)
        || !leaf_shape
            .get(1)
            .is_some_and(|size| classes_or_one.contains(size))
    {
        return Err(format!("leaves of the shape {leaf_shape:?}"));
    }
    let target_ids = reader.ints()?;
    let class_ids = reader.ints()?;
    let name = String::from_utf8_lossy(reader.list(1)?).into_owned();
    let (sigmoid_alpha, ratio) = (reader.float()?, reader.float()?);
    let base_scores = reader.doubles()?;
    reader.list(1)?; // Attributes.
    reader.skip_optional_fields()?;
    let link = Link::named(&name, f64::from(sigmoid_alpha), f64::from(ratio))
        .ok_or_else(|| format!("Post-processor named '{}' not found", name.escape_debug()))?;
    Ok(Head {
        feature_count,
        task,
        is_averaged,
        class_count,
        target_ids,
        class_ids,
        link,
        base_scores,
    })
}

/// The lists of a tree, which have one entry per node unless the second part of the name tells
/// otherwise.
struct Lists<'a> {
    left: Vec<i32>,
    right: Vec<i32>,
    feature: Vec<i32>,
    is_default_left: &'a [u8],
    leaf_value: Vec<f64>,
    threshold: Vec<f64>,
    operator: &'a [u8],
    is_set_right: &'a [u8],
    leaf_vector_begin: Vec<usize>,
    leaf_vector_end: Vec<usize>,
    category_list: Vec<u32>,
    category_begin: Vec<usize>,
    category_end: Vec<usize>,
    row_count: Vec<usize>,
    has_row_count: &'a [u8],
    hessian: Vec<f64>,
    has_hessian: &'a [u8],
}

fn tree(reader: &mut Reader<'_>, class: Option<usize>, class_count: usize) -> Result<Tree, String> {
    let count = reader.int()?;
    let count = usize::try_from(count).map_err(|_| format!("{count} nodes"))?;
    reader.flag()?; // Whether there are categorical splits.
    let node_type = reader.list(1)?;
    if node_type.len() != count {
        return Err(format!("{} types for {count} nodes", node_type.len()));
    }
    let vectors;
    let lists = Lists {
        left: reader.ints()?,
        right: reader.ints()?,
        feature: reader.ints()?,
        is_default_left: reader.list(1)?,
        leaf_value: reader.reals()?,
        threshold: reader.reals()?,
        operator: reader.list(1)?,
        is_set_right: reader.list(1)?,
        leaf_vector_begin: {
            vectors = reader.reals()?;
            reader.sizes()?
        },
        leaf_vector_end: reader.sizes()?,
        category_list: reader.unsigned()?,
        category_begin: reader.sizes()?,
        category_end: reader.sizes()?,
        row_count: reader.sizes()?,
        has_row_count: reader.list(1)?,
        hessian: reader.doubles()?,
        has_hessian: reader.list(1)?,
    };
    reader.doubles()?; // Gains,
    reader.list(1)?; // and whether there are any.
    reader.skip_optional_fields()?;
    reader.skip_optional_fields()?;
    let mut tree = Tree {
        class,
        nodes: Vec::with_capacity(count),
        vectors,
        sets: Vec::new(),
    };
    let mut category_count = 0usize;
    for index in 0..count {
        let kind = match item("node_type", node_type, index)? {
            0 => leaf(&lists, index, tree.class.is_none(), class_count)?,
            1 => NodeKind::Split(split(&lists, index, comparison(&lists, index)?)?),
            2 => {
                let categories = categories(&lists, index)?;
                // Lists do not overlap.
                category_count = category_count.saturating_add(categories.len());
                if category_count > lists.category_list.len() {
                    return Err("lists of categories overlap".to_owned());
                }
                let set = tree.sets.len();
                tree.sets.push(categories.to_vec());
                let is_right = item("category_list_right_child", lists.is_set_right, index)?;
                let test = match flag(is_right)? {
                    true => Test::Without(set),
                    false => Test::Within(set),
                };
                NodeKind::Split(split(&lists, index, test)?)
            }
            kind => return Err(format!("node {index} has the type {kind}")),
        };
        tree.nodes.push(Node {
            kind,
            cover: cover(&lists, index),
        });
    }
    Ok(tree)
}

fn leaf(
    lists: &Lists<'_>,
    index: usize,
    is_vector: bool,
    class_count: usize,
) -> Result<NodeKind, String> {
    if !is_vector {
        return Ok(NodeKind::Leaf(item(
            "leaf_value",
            &lists.leaf_value,
            index,
        )?));
    }
    let start = item("leaf_vector_begin", &lists.leaf_vector_begin, index)?;
    let end = item("leaf_vector_end", &lists.leaf_vector_end, index)?;
    match end.checked_sub(start) == Some(class_count) {
        true => Ok(NodeKind::Vector(start)),
        false => Err(format!("leaf {index} does not have {class_count} values")),
    }
}

fn comparison(lists: &Lists<'_>, index: usize) -> Result<Test, String> {
    let threshold = item("threshold", &lists.threshold, index)?;
    match item("cmp", lists.operator, index)? {
        2 => Ok(Test::Less(threshold)),
        3 => Ok(Test::LessOrEqual(threshold)),
        4 => Ok(Test::Greater(threshold)),
        5 => Ok(Test::GreaterOrEqual(threshold)),
        operator => Err(format!(
            "node {index} has the operator {operator}, not <, <=, > or >="
        )),
    }
}

fn categories<'l>(lists: &'l Lists<'_>, index: usize) -> Result<&'l [u32], String> {
    let start = item("category_list_begin", &lists.category_begin, index)?;
    let end = item("category_list_end", &lists.category_end, index)?;
    lists
        .category_list
        .get(start..end)
        .ok_or_else(|| format!("categories of node {index} lie outside of the list"))
}

fn split(lists: &Lists<'_>, index: usize, test: Test) -> Result<Split, String> {
    let reference = |name: &str, list: &[i32]| {
        let number = item(name, list, index)?;
        usize::try_from(number).map_err(|_| format!("node {index} has {number} as its {name}"))
    };
    Ok(Split {
        feature: reference("split_index", &lists.feature)?,
        test,
        left: reference("cleft", &lists.left)?,
        right: reference("cright", &lists.right)?,
        is_default_left: flag(item("default_left", lists.is_default_left, index)?)?,
        missing: Missing::Nan,
    })
}

fn cover(lists: &Lists<'_>, index: usize) -> f64 {
    if lists.has_hessian.get(index) == Some(&1) {
        return lists.hessian.get(index).copied().unwrap_or(f64::NAN);
    }
    match lists.has_row_count.get(index) {
        Some(&1) => lists
            .row_count
            .get(index)
            .map_or(f64::NAN, |&count| count as f64),
        _ => f64::NAN,
    }
}

fn item<T: Copy>(name: &str, list: &[T], index: usize) -> Result<T, String> {
    list.get(index).copied().ok_or_else(|| {
        format!(
            "{name} has {} entries, and none for node {index}",
            list.len()
        )
    })
}

fn flag(byte: u8) -> Result<bool, String> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(format!("{byte} is no boolean")),
    }
}

struct Reader<'a> {
    bytes: Bytes<'a>,
    /// Whether thresholds and leaves have 64 bits.
    is_double: bool,
}

impl<'a> Reader<'a> {
    fn int(&mut self) -> Result<i32, String> {
        self.bytes.array().map(i32::from_le_bytes)
    }

    fn float(&mut self) -> Result<f32, String> {
        self.bytes.array().map(f32::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, String> {
        flag(self.bytes.byte()?)
    }

    fn size(&mut self) -> Result<usize, String> {
        let size = self.bytes.array().map(u64::from_le_bytes)?;
        usize::try_from(size).map_err(|_| format!("a size of {size}"))
    }

    /// The bytes of a list of elements of `width` bytes.
    fn list(&mut self, width: usize) -> Result<&'a [u8], String> {
        let count = self.size()?;
        let byte_count = count
            .checked_mul(width)
            .ok_or_else(|| format!("a list of {count}"))?;
        self.bytes.take(byte_count)
    }

    fn numbers<T, const N: usize>(
        &mut self,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, String> {
        let (chunks, _) = self.list(N)?.as_chunks::<N>();
        Ok(chunks.iter().map(|&chunk| read(chunk)).collect())
    }

    fn ints(&mut self) -> Result<Vec<i32>, String> {
        self.numbers(i32::from_le_bytes)
    }

    fn unsigned(&mut self) -> Result<Vec<u32>, String> {
        self.numbers(u32::from_le_bytes)
    }

    /// Numbers that do not fit become the largest, which refers to nothing.
    fn sizes(&mut self) -> Result<Vec<usize>, String> {
        self.numbers(|chunk| usize::try_from(u64::from_le_bytes(chunk)).unwrap_or(usize::MAX))
    }

    fn doubles(&mut self) -> Result<Vec<f64>, String> {
        self.numbers(f64::from_le_bytes)
    }

    /// Numbers of the model's own type.
    fn reals(&mut self) -> Result<Vec<f64>, String> {
        match self.is_double {
            true => self.doubles(),
            false => self.numbers(|chunk| f64::from(f32::from_le_bytes(chunk))),
        }
    }

    /// Fields that later versions may add: a name, and a list whose element size comes first.
    fn skip_optional_fields(&mut self) -> Result<(), String> {
        let count = self.int()?;
        for _ in 0..count {
            self.list(1)?;
            let width = self.size()?;
            self.list(width)?;
        }
        Ok(())
    }
}
