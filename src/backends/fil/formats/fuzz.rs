//! Seeded fuzzing of all formats: a changed file is refused, or is a forest that answers. No change
//! makes a reader panic, loop, or hold more memory than its file accounts for.

use std::time::{Duration, Instant};

use conch_backend_sdk::serde_json::{self, Value};

use super::Format;
use crate::forest::model::Forest;
use crate::forest::{Compiled, Predictor, Shap};

const JSON: &str = r#"{"version": [3, 2, 0], "learner": {
    "attributes": {}, "objective": {"name": "binary:logistic", "reg_loss_param": {}},
    "learner_model_param": {"base_score": "[5E-1]", "num_class": "0", "num_feature": "3",
        "num_target": "1"},
    "gradient_booster": {"name": "gbtree", "model": {
        "gbtree_model_param": {"num_trees": "2"}, "tree_info": [0, 0], "trees": [
        {"tree_param": {"size_leaf_vector": "1", "num_nodes": "5"},
         "left_children": [1, -1, 3, -1, -1], "right_children": [2, -1, 4, -1, -1],
         "split_indices": [0, 0, 2, 0, 0], "split_conditions": [0.5, -1.0, 2.5, 0.25, 0.75],
         "default_left": [1, 0, 0, 0, 0], "split_type": [0, 0, 1, 0, 0],
         "sum_hessian": [10.0, 4.0, 6.0, 3.0, 3.0],
         "categories": [1, 3, 40], "categories_nodes": [2], "categories_segments": [0],
         "categories_sizes": [3]},
        {"tree_param": {"size_leaf_vector": "1"}, "left_children": [-1],
         "right_children": [-1], "split_indices": [0], "split_conditions": [0.5],
         "default_left": [false], "sum_hessian": [10.0]}]}}}}"#;

const TEXT: &str = "tree
version=v4
num_class=1
num_tree_per_iteration=1
max_feature_idx=2
objective=binary sigmoid:1
tree_sizes=300 100

Tree=0
num_leaves=3
num_cat=1
split_feature=0 2
threshold=0.5 0
decision_type=10 1
left_child=-1 -2
right_child=1 -3
leaf_value=0.5 -1.5 2
leaf_count=4 3 3
internal_count=10 6
cat_boundaries=0 2
cat_threshold=10 256
is_linear=0
shrinkage=1

Tree=1
num_leaves=1
num_cat=0
leaf_value=0.25
leaf_count=10

end of trees

parameters:
[boosting: gbdt]
";

/// The value as XGBoost writes it: integers as `L`, lists of one type with it.
fn ubjson(value: &Value) -> Vec<u8> {
    let text = |text: &str| {
        let length = (text.len() as u64).to_be_bytes();
        [b"L", &length[..], text.as_bytes()].concat()
    };
    let count = |count: usize| [b"#L", &(count as u64).to_be_bytes()[..]].concat();
    match value {
        Value::Null => b"Z".to_vec(),
        Value::Bool(flag) => if *flag { b"T" } else { b"F" }.to_vec(),
        Value::String(string) => [b"S".to_vec(), text(string)].concat(),
        Value::Object(object) => {
            let entries = object
                .iter()
                .map(|(key, value)| [text(key), ubjson(value)].concat());
            [
                b"{".to_vec(),
                entries.collect::<Vec<_>>().concat(),
                b"}".to_vec(),
            ]
            .concat()
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_f64) => {
            let numbers = list.iter().filter_map(Value::as_f64);
            let numbers = numbers.map(|number| (number as f32).to_be_bytes());
            [
                b"[$d".to_vec(),
                count(list.len()),
                numbers.collect::<Vec<_>>().concat(),
            ]
            .concat()
        }
        Value::Array(list) => {
            let items = list.iter().map(ubjson).collect::<Vec<_>>().concat();
            [b"[".to_vec(), count(list.len()), items].concat()
        }
        Value::Number(number) => match number.as_i64() {
            Some(number) => [b"L", &number.to_be_bytes()[..]].concat(),
            None => {
                let number = number.as_f64().unwrap_or_default();
                [b"D", &number.to_be_bytes()[..]].concat()
            }
        },
    }
}

/// Bytes of a checkpoint, field after field.
#[derive(Default)]
struct Checkpoint(Vec<u8>);

impl Checkpoint {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn ints(self, numbers: &[i32]) -> Self {
        let bytes: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        self.raw(&bytes)
    }

    fn list<T, const N: usize>(self, items: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Self {
        let list = self.raw(&(items.len() as u64).to_le_bytes());
        let bytes: Vec<u8> = items.iter().flat_map(bytes).collect();
        list.raw(&bytes)
    }

    fn bytes(self, items: &[u8]) -> Self {
        self.list(items, |&item| [item])
    }

    fn int_list(self, items: &[i32]) -> Self {
        self.list(items, |item| item.to_le_bytes())
    }

    fn floats(self, items: &[f32]) -> Self {
        self.list(items, |item| item.to_le_bytes())
    }

    fn sizes(self, items: &[u64]) -> Self {
        self.list(items, |item| item.to_le_bytes())
    }

    fn doubles(self, items: &[f64]) -> Self {
        self.list(items, |item| item.to_le_bytes())
    }
}

/// One tree of a comparison, a set and three leaves with two values each.
fn checkpoint() -> Vec<u8> {
    let head = Checkpoint::default()
        .ints(&[4, 8, 1])
        .raw(&[2, 2])
        .raw(&1u64.to_le_bytes())
        .ints(&[3])
        .raw(&[2, 1])
        .ints(&[1])
        .int_list(&[2])
        .int_list(&[1, 2])
        .int_list(&[0])
        .int_list(&[-1])
        .bytes(b"identity_multiclass")
        .raw(&1f32.to_le_bytes())
        .raw(&1f32.to_le_bytes())
        .doubles(&[0.0, 0.5])
        .bytes(b"{}")
        .ints(&[0]);
    let tree = head
        .ints(&[5])
        .raw(&[1])
        .bytes(&[1, 0, 2, 0, 0])
        .int_list(&[1, -1, 3, -1, -1])
        .int_list(&[2, -1, 4, -1, -1])
        .int_list(&[0, -1, 2, -1, -1])
        .bytes(&[1, 0, 0, 0, 0])
        .floats(&[0.0; 5])
        .floats(&[0.5, 0.0, 0.0, 0.0, 0.0])
        .bytes(&[3, 0, 0, 0, 0])
        .bytes(&[0; 5])
        .floats(&[0.0, 1.0, 0.25, 0.75, 0.5, 0.5])
        .sizes(&[0, 0, 2, 2, 4])
        .sizes(&[0, 2, 2, 4, 6])
        .list(&[1u32, 5], |item| item.to_le_bytes())
        .sizes(&[0, 0, 0, 2, 2])
        .sizes(&[0, 0, 2, 2, 2])
        .sizes(&[10, 4, 6, 3, 3])
        .bytes(&[1; 5]);
    let statistics = tree.doubles(&[]).bytes(&[]).doubles(&[]).bytes(&[]);
    statistics.ints(&[0, 0]).0
}

fn samples() -> Vec<(Format, Vec<u8>)> {
    let value: Value = serde_json::from_str(JSON).unwrap();
    vec![
        (Format::XgboostJson, JSON.as_bytes().to_vec()),
        (Format::XgboostUbjson, ubjson(&value)),
        (Format::Lightgbm, TEXT.as_bytes().to_vec()),
        (Format::TreeliteCheckpoint, checkpoint()),
    ]
}

fn answers(forest: &Forest, rows: &[f32]) -> Vec<f32> {
    let compiled = Compiled::new(forest).unwrap();
    let width = forest.class_count;
    let mut answers = vec![0.0; rows.len() / forest.feature_count * width];
    let finish = |values: &[f64], answer: &mut [f32]| {
        for (value, target) in values.iter().zip(answer) {
            *target = *value as f32;
        }
    };
    Predictor::new(1).predict(&compiled, rows, &mut answers, width, &finish);
    answers
}

const ROWS: [f32; 15] = [
    0.0,
    0.0,
    1.0,
    1.0,
    0.0,
    3.0,
    1.0,
    0.0,
    40.0,
    f32::NAN,
    0.0,
    2.0,
    1.0,
    9.0,
    f32::NAN,
];

#[test]
fn samples_answer() {
    let logistic = |value: f32| 1.0 / (1.0 + (-value).exp());
    let boosted = [-0.5, 1.25, 1.25, -0.5, 1.25].map(logistic).to_vec();
    for (format, bytes) in samples() {
        let forest = format.read(&bytes).unwrap();
        let expected = match format {
            Format::Lightgbm => [0.75, -1.25, -1.25, 0.75, 2.25].map(logistic).to_vec(),
            Format::TreeliteCheckpoint => {
                vec![0.0, 1.5, 0.5, 1.0, 0.5, 1.0, 0.0, 1.5, 0.5, 1.0]
            }
            _ => boosted.clone(),
        };
        let got = answers(&forest, &ROWS);
        for (got, expected) in got.iter().zip(&expected) {
            assert!(
                (got - expected).abs() < 1e-6,
                "{format:?}: {got} {expected}"
            );
        }
        assert_eq!(got.len(), expected.len(), "{format:?}");
        Shap::new(&forest).unwrap();
    }
    assert!(
        Format::XgboostLegacy
            .read(b"binf")
            .unwrap_err()
            .contains("xgboost_ubj")
    );
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        const NUMBERS: [&[u8]; 8] = [
            b"-1",
            b"4294967296",
            b"99999999999999999999",
            b"nan",
            b"1e999",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x80",
            b"\0\0\0\0\0\0\0\x40",
        ];
        let place = self.below(bytes.len());
        let end = (place + 1 + self.below(12)).min(bytes.len());
        let number = NUMBERS[self.below(NUMBERS.len())];
        match self.below(7) {
            0 => bytes[place] ^= 1 << self.below(8),
            1 => bytes[place] = self.below(256) as u8,
            2 => bytes.truncate(place),
            3 => drop(bytes.drain(place..end)),
            4 => drop(bytes.splice(place..place, number.iter().copied())),
            5 => {
                let end = (place + number.len()).min(bytes.len());
                drop(bytes.splice(place..end, number.iter().copied()));
            }
            _ => {
                let piece = bytes[place..end].to_vec();
                let target = self.below(bytes.len());
                drop(bytes.splice(target..target, piece));
            }
        }
    }
}

/// What a file of this size may make of memory: its nodes, sets and values.
fn check_size(forest: &Forest, byte_count: usize, seed: u64) {
    let of_trees: usize = forest
        .trees
        .iter()
        .map(|tree| {
            let sets: usize = tree.sets.iter().map(Vec::len).sum();
            tree.nodes.len() + tree.vectors.len() + sets / 32
        })
        .sum();
    assert!(
        of_trees + forest.trees.len() <= 2 * byte_count,
        "seed {seed}"
    );
}

#[test]
fn changed_files_are_refused_or_answer() {
    for (format, sample) in samples() {
        let started = Instant::now();
        let mut accepted = 0;
        for seed in 1..30_000u64 {
            let mut random = Random(seed);
            let mut bytes = sample.clone();
            for _ in 0..=random.below(3) {
                if !bytes.is_empty() {
                    random.change(&mut bytes);
                }
            }
            let Ok(forest) = format.read(&bytes) else {
                continue;
            };
            accepted += 1;
            check_size(&forest, bytes.len(), seed);
            let Ok(compiled) = Compiled::new(&forest) else {
                continue;
            };
            // Bits of sets may be 64 MiB.
            assert!(compiled.byte_count() < 66 << 20, "{format:?} seed {seed}");
            if forest.feature_count <= 1000 {
                let row = vec![1.0; 5 * forest.feature_count];
                answers(&forest, &row);
                if let Ok(shap) = Shap::new(&forest) {
                    shap.explain(&row, &mut vec![0.0; shap.width()]);
                }
            }
        }
        assert!(
            accepted > 100,
            "{format:?}: nothing is left of what is changed"
        );
        // Hundreds of times what it takes.
        assert!(started.elapsed() < Duration::from_secs(120), "{format:?}");
    }
}
