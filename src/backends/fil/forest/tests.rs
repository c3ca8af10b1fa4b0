//! Random forests, answered by the compiled layout and by a plain reading of their description.

use super::columns::clean;
use super::model::{Forest, Missing, Node, NodeKind, Split, Task, Test, Tree};
use super::{Compiled, Link, Predictor, Shap};

/// xorshift64*, so that a seed is a case.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

const EDGES: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    1.5,
    -2.0,
    1e-36,
    -1e-36,
    0.1,
    1e300,
    -1e300,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f32::MAX as f64,
    16_777_217.0,
];

struct Shape {
    features: usize,
    classes: usize,
    trees: usize,
    nodes_max: usize,
    is_vector: bool,
    has_sets: bool,
}

fn forest(random: &mut Random, shape: &Shape) -> Forest {
    let trees = (0..shape.trees)
        .map(|index| tree(random, shape, index))
        .collect();
    Forest {
        feature_count: shape.features,
        class_count: shape.classes,
        task: Task::Regression,
        trees,
        is_averaged: random.below(2) == 0,
        base_scores: (0..shape.classes).map(|class| class as f64).collect(),
        link: Link::Identity,
    }
}

fn tree(random: &mut Random, shape: &Shape, index: usize) -> Tree {
    let mut tree = Tree {
        class: (!shape.is_vector).then_some(index % shape.classes),
        ..Tree::default()
    };
    let leaf = |tree: &mut Tree, random: &mut Random| {
        let value = random.below(1000) as f64 / 8.0;
        let kind = if shape.is_vector {
            let start = tree.vectors.len();
            tree.vectors
                .extend((0..shape.classes).map(|class| value + class as f64));
            NodeKind::Vector(start)
        } else {
            NodeKind::Leaf(value)
        };
        tree.nodes.push(Node { kind, cover: 1.0 });
    };
    leaf(&mut tree, random);
    // Splits a random leaf, again and again.
    while tree.nodes.len() + 2 <= shape.nodes_max {
        let place = random.below(tree.nodes.len());
        if matches!(tree.nodes[place].kind, NodeKind::Split(_)) {
            continue;
        }
        let left = tree.nodes.len();
        let test = test(random, shape, &mut tree);
        leaf(&mut tree, random);
        leaf(&mut tree, random);
        tree.nodes[place].kind = NodeKind::Split(Split {
            feature: random.below(shape.features),
            test,
            left,
            right: left + 1,
            is_default_left: random.below(2) == 0,
            missing: random.pick(&[Missing::Nan, Missing::Nan, Missing::Zero, Missing::Never]),
        });
    }
    cover(&mut tree, 0);
    tree
}

fn test(random: &mut Random, shape: &Shape, tree: &mut Tree) -> Test {
    if shape.has_sets && random.below(3) == 0 {
        let set = (0..40).filter(|_| random.below(2) == 0).collect();
        tree.sets.push(set);
        let set = tree.sets.len() - 1;
        return random.pick(&[Test::Within(set), Test::Without(set)]);
    }
    let threshold = match random.below(4) {
        0 => random.pick(&EDGES),
        _ => random.below(200) as f64 / 10.0 - 10.0,
    };
    random.pick(&[
        Test::Less(threshold),
        Test::LessOrEqual(threshold),
        Test::Greater(threshold),
        Test::GreaterOrEqual(threshold),
    ])
}

fn cover(tree: &mut Tree, index: usize) -> f64 {
    if let NodeKind::Split(split) = tree.nodes[index].kind.clone() {
        tree.nodes[index].cover = cover(tree, split.left) + cover(tree, split.right);
    }
    tree.nodes[index].cover
}

fn row(random: &mut Random, shape: &Shape) -> Vec<f32> {
    let value = |random: &mut Random| match random.below(6) {
        0 => f32::NAN,
        1 => random.pick(&EDGES) as f32,
        2 => random.below(45) as f32,
        _ => random.below(200) as f32 / 10.0 - 10.0,
    };
    (0..shape.features).map(|_| value(random)).collect()
}

/// Whether the row goes left.
fn goes_left(tree: &Tree, split: &Split, row: &[f32]) -> bool {
    let value = clean(split.missing, row[split.feature]);
    let wide = f64::from(value);
    let is_within = |set: usize| value >= 0.0 && tree.sets[set].contains(&(value as u32));
    match split.test {
        _ if value.is_nan() => split.is_default_left,
        Test::Less(threshold) => wide < threshold,
        Test::LessOrEqual(threshold) => wide <= threshold,
        Test::Greater(threshold) => wide > threshold,
        Test::GreaterOrEqual(threshold) => wide >= threshold,
        Test::Within(set) => is_within(set),
        Test::Without(set) => !is_within(set),
    }
}

fn expected(forest: &Forest, row: &[f32]) -> Vec<f64> {
    let mut sums = vec![0.0; forest.class_count];
    for tree in &forest.trees {
        let mut index = 0;
        loop {
            match &tree.nodes[index].kind {
                NodeKind::Split(split) => {
                    let is_left = goes_left(tree, split, row);
                    index = if is_left { split.left } else { split.right };
                }
                NodeKind::Leaf(value) => {
                    sums[tree.class.unwrap()] += value;
                    break;
                }
                NodeKind::Vector(start) => {
                    for (sum, value) in sums.iter_mut().zip(&tree.vectors[*start..]) {
                        *sum += value;
                    }
                    break;
                }
            }
        }
    }
    let counts = forest.trees_per_class();
    for ((sum, count), base) in sums.iter_mut().zip(counts).zip(&forest.base_scores) {
        if forest.is_averaged && count > 0 {
            *sum /= count as f64;
        }
        *sum += base;
    }
    sums
}

fn check(seed: u64, shape: &Shape, row_count: usize, threads: usize) {
    let mut random = Random(seed);
    let forest = forest(&mut random, shape);
    let compiled = Compiled::new(&forest).unwrap();
    let rows: Vec<f32> = (0..row_count)
        .flat_map(|_| row(&mut random, shape))
        .collect();
    let mut answers = vec![0.0; row_count * shape.classes];
    let mut predictor = Predictor::new(threads);
    // Twice, as memory is kept.
    for _ in 0..2 {
        predictor.predict(
            &compiled,
            &rows,
            &mut answers,
            shape.classes,
            &|sums, answer| {
                for (sum, target) in sums.iter().zip(answer) {
                    *target = *sum as f32;
                }
            },
        );
    }
    let pairs = rows
        .chunks(shape.features)
        .zip(answers.chunks(shape.classes));
    for (place, (row, answer)) in pairs.enumerate() {
        for (got, expected) in answer.iter().zip(expected(&forest, row)) {
            let difference = (f64::from(*got) - expected).abs();
            assert!(
                difference < 1e-3,
                "seed {seed} row {place} {row:?}: {got} {expected}"
            );
        }
    }
}

#[test]
fn compiled_forests_answer_as_they_are_described() {
    let shapes = [
        (1, 1, 1, 1, false, false),
        (3, 1, 7, 31, false, false),
        (5, 1, 20, 101, false, true),
        (4, 3, 9, 31, false, false),
        (4, 3, 5, 31, true, true),
        // Indexes of 16 and of 32 bits.
        (6, 1, 3, 601, false, false),
        (6, 2, 3, 601, true, true),
        (4, 1, 2, 80_001, false, false),
        (400, 1, 50, 61, false, true),
    ];
    for (number, (features, classes, trees, nodes_max, is_vector, has_sets)) in
        shapes.into_iter().enumerate()
    {
        let shape = Shape {
            features,
            classes,
            trees,
            nodes_max,
            is_vector,
            has_sets,
        };
        for (row_count, threads) in [
            (1, 1),
            (6, 1),
            (11, 1),
            (12, 1),
            (17, 1),
            (28, 1),
            (64, 2),
            (150, 1),
            (1000, 4),
        ] {
            for seed in 1..4 {
                check(seed * 1000 + number as u64, &shape, row_count, threads);
            }
        }
    }
}

/// The answer if only these features are known: the others go both ways, by weight.
fn known(tree: &Tree, index: usize, row: &[f32], features: usize) -> f64 {
    match &tree.nodes[index].kind {
        NodeKind::Leaf(value) => *value,
        NodeKind::Vector(start) => tree.vectors[*start],
        NodeKind::Split(split) if features >> split.feature & 1 == 1 => {
            let is_left = goes_left(tree, split, row);
            known(
                tree,
                if is_left { split.left } else { split.right },
                row,
                features,
            )
        }
        NodeKind::Split(split) => [split.left, split.right]
            .into_iter()
            .map(|child| {
                let share = tree.nodes[child].cover / tree.nodes[index].cover;
                share * known(tree, child, row, features)
            })
            .sum(),
    }
}

/// The Shapley value of a feature, by its definition.
fn shapley(tree: &Tree, row: &[f32], feature: usize) -> f64 {
    let factorial = |number: usize| (1..=number).product::<usize>() as f64;
    let count = row.len();
    (0..1usize << count)
        .filter(|others| others >> feature & 1 == 0)
        .map(|others| {
            let size = others.count_ones() as usize;
            let weight = factorial(size) * factorial(count - size - 1) / factorial(count);
            let with = known(tree, 0, row, others | 1 << feature);
            weight * (with - known(tree, 0, row, others))
        })
        .sum()
}

#[test]
fn shapley_values_are_those_of_the_definition() {
    for (seed, is_vector) in (1..20).zip([false, true].into_iter().cycle()) {
        let mut random = Random(seed);
        let shape = Shape {
            features: 5,
            classes: if is_vector { 2 } else { 1 },
            trees: 3,
            nodes_max: 25,
            is_vector,
            has_sets: true,
        };
        let forest = forest(&mut random, &shape);
        let shap = Shap::new(&forest).unwrap();
        let mut values = vec![0.0; shap.width()];
        let scale = if forest.is_averaged { 1.0 / 3.0 } else { 1.0 };
        for _ in 0..5 {
            let row = row(&mut random, &shape);
            shap.explain(&row, &mut values);
            for (feature, value) in values.iter().take(5).enumerate() {
                let trees = forest.trees.iter();
                let sum: f64 = trees.map(|tree| shapley(tree, &row, feature) * scale).sum();
                assert!(
                    (sum - value).abs() < 1e-6,
                    "seed {seed} {row:?}: {value} {sum}"
                );
            }
            for (values, expected) in values.chunks(6).zip(expected(&forest, &row)) {
                let sum: f64 = values.iter().sum();
                assert!(
                    (sum - expected).abs() < 1e-6,
                    "seed {seed}: {sum} {expected}"
                );
            }
        }
    }
}

#[test]
fn what_is_no_forest_is_refused() {
    let split = |left, right| Node {
        kind: NodeKind::Split(Split {
            feature: 0,
            test: Test::Less(0.0),
            left,
            right,
            is_default_left: true,
            missing: Missing::Nan,
        }),
        cover: 1.0,
    };
    let leaf = |value| Node {
        kind: NodeKind::Leaf(value),
        cover: f64::NAN,
    };
    let with = |change: &dyn Fn(&mut Split)| {
        let mut node = split(1, 2);
        if let NodeKind::Split(split) = &mut node.kind {
            change(split);
        }
        vec![node, leaf(1.0), leaf(2.0)]
    };
    for (nodes, expected) in [
        (vec![], "no nodes"),
        (vec![split(0, 0)], "node 0 is reached twice"),
        (vec![split(1, 1), leaf(0.0)], "node 1 is reached twice"),
        (vec![split(1, 7), leaf(0.0)], "a child is node 7 of 2"),
        (vec![leaf(f64::NAN)], "leaf 0 is NaN"),
        (
            with(&|split| split.feature = 3),
            "node 0 tests feature 3 of 3",
        ),
        (
            with(&|split| split.test = Test::Less(f64::NAN)),
            "node 0 has the threshold NaN",
        ),
        (
            with(&|split| split.test = Test::Within(0)),
            "node 0 has no set of categories",
        ),
        (
            vec![Node {
                kind: NodeKind::Vector(0),
                cover: 1.0,
            }],
            "leaf 0 has several values",
        ),
    ] {
        let forest = Forest {
            feature_count: 3,
            class_count: 1,
            task: Task::Regression,
            trees: vec![Tree {
                class: Some(0),
                nodes,
                ..Tree::default()
            }],
            is_averaged: false,
            base_scores: vec![0.0],
            link: Link::Identity,
        };
        assert_eq!(forest.check(), Err(format!("tree 0: {expected}")));
        assert!(Compiled::new(&forest).is_err());
    }
}
