//! CUDA graphs: which batches are captured, and which batch uses which graph.

use std::collections::{BTreeMap, BTreeSet};

use conch_backend_sdk as sdk;
use sdk::serde_json::Value;
use sdk::{Error, ModelConfig};

/// A batch that is captured, and the smallest that may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphSpec {
    pub batch_size: i64,
    pub lower_batch_size: i64,
    /// By input, without the batch; empty: the best of the profile.
    pub shapes: BTreeMap<String, Vec<i64>>,
    pub lower_shapes: BTreeMap<String, Vec<i64>>,
}

/// The graphs of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphSpecs {
    pub specs: Vec<GraphSpec>,
    /// Batches below a graph's may use it.
    pub allows_inexact: bool,
}

/// What tells a batch's graph: its size, then the shapes of all inputs, one after the other.
pub type GraphKey = Vec<i64>;

/// Graphs of a profile, by what they were captured with.
#[derive(Debug)]
pub struct Graphs<G> {
    by_key: BTreeMap<GraphKey, Captured<G>>,
    allows_inexact: bool,
}

#[derive(Debug)]
struct Captured<G> {
    lower: GraphKey,
    graph: G,
}

impl GraphSpecs {
    /// None if the configuration asks for no graphs.
    ///
    /// # Errors
    /// `InvalidArgument`, in upstream's words.
    pub fn read(config: &ModelConfig) -> Result<Option<Self>, Error> {
        let cuda = config.json().pointer("/optimization/cuda");
        let is_asked = cuda.and_then(|cuda| cuda.get("graphs")) == Some(&Value::Bool(true));
        if !is_asked {
            return Ok(None);
        }
        let written = cuda.and_then(|cuda| cuda.get("graph_spec"));
        let written = written
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let mut specs = GraphSpecs {
            specs: Vec::new(),
            allows_inexact: false,
        };
        if written.is_empty() {
            specs.specs = usual_batches(config)
                .into_iter()
                .map(GraphSpec::of_batch)
                .collect();
        }
        for spec in written {
            let lower = spec
                .get("graph_lower_bound")
                .filter(|lower| !lower.is_null());
            specs.allows_inexact |= lower.is_some();
            let (batch_size, shapes) = read_spec(spec)?;
            let (lower_batch_size, lower_shapes) = match lower {
                Some(lower) => read_spec(lower)?,
                None => (batch_size, shapes.clone()),
            };
            specs.specs.push(GraphSpec {
                batch_size,
                lower_batch_size,
                shapes,
                lower_shapes,
            });
        }
        for spec in &specs.specs {
            spec.check(config.max_batch_size())?;
        }
        Ok(Some(specs))
    }
}

impl GraphSpec {
    fn of_batch(batch_size: i64) -> Self {
        GraphSpec {
            batch_size,
            lower_batch_size: batch_size,
            shapes: BTreeMap::new(),
            lower_shapes: BTreeMap::new(),
        }
    }

    fn check(&self, max_batch_size: i64) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::invalid(text));
        let sizes = [self.batch_size, self.lower_batch_size];
        if max_batch_size == 0 {
            if sizes != [0, 0] {
                return refuse(
                    "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0".to_owned(),
                );
            }
        } else if sizes.iter().any(|size| *size < 1 || *size > max_batch_size) {
            return refuse(format!(
                "graph spec expects 'batch_size' to be >= 1 and <= {max_batch_size}"
            ));
        }
        if self.lower_batch_size > self.batch_size {
            return refuse(
                "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'"
                    .to_owned(),
            );
        }
        for (name, shape) in &self.shapes {
            let Some(lower) = self.lower_shapes.get(name) else {
                return refuse(format!(
                    "graph lower bound spec expects shape for input '{name}'"
                ));
            };
            if lower.len() != shape.len() {
                return refuse(format!(
                    "graph lower bound spec expects to have '{}' dimensions, got {}",
                    shape.len(),
                    lower.len()
                ));
            }
            for (lower, dim) in lower.iter().zip(shape) {
                if *lower < 0 || *dim < 0 {
                    return refuse(format!(
                        "graph spec expects input '{name}' to have dimension >= 0"
                    ));
                }
                if lower > dim {
                    return refuse(format!(
                        "graph lower bound spec expects input '{name}' to have dimension <= {dim}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Batches that are captured where the configuration names none: preferred ones, else small ones,
/// for which graphs help most.
fn usual_batches(config: &ModelConfig) -> BTreeSet<i64> {
    let max_batch_size = config.max_batch_size();
    if max_batch_size == 0 {
        return BTreeSet::from([0]);
    }
    let json = config.json();
    let has = |path: &str| json.pointer(path).is_some_and(|at| !at.is_null());
    let preferred = match (has("/dynamic_batching"), has("/sequence_batching/oldest")) {
        (true, _) => json.pointer("/dynamic_batching/preferred_batch_size"),
        (false, true) => json.pointer("/sequence_batching/oldest/preferred_batch_size"),
        (false, false) => None,
    };
    let mut sizes = match has("/dynamic_batching") || has("/sequence_batching/oldest") {
        true => {
            let preferred = preferred.and_then(Value::as_array).into_iter().flatten();
            preferred.filter_map(integer).chain([1]).collect()
        }
        false => BTreeSet::from([1, 2, 3, 4, 6, 8, 12, 16]),
    };
    sizes.insert(max_batch_size);
    sizes.retain(|size| (1..=max_batch_size).contains(size));
    sizes
}

type Shapes = BTreeMap<String, Vec<i64>>;

fn read_spec(spec: &Value) -> Result<(i64, Shapes), Error> {
    let batch_size = spec.get("batch_size").and_then(integer).unwrap_or(0);
    let inputs = spec.get("input").and_then(Value::as_object);
    let shapes = inputs.into_iter().flatten().map(|(name, input)| {
        let dims = input.get("dim").and_then(Value::as_array);
        let dims: Option<Vec<i64>> = dims.into_iter().flatten().map(integer).collect();
        let dims = dims
            .ok_or_else(|| Error::invalid(format!("graph spec has no shape for input '{name}'")))?;
        Ok((name.clone(), dims))
    });
    Ok((batch_size, shapes.collect::<Result<_, Error>>()?))
}

fn integer(value: &Value) -> Option<i64> {
    let text = || value.as_str().and_then(|text| text.parse().ok());
    value.as_i64().or_else(text)
}

impl<G> Graphs<G> {
    pub fn new(allows_inexact: bool) -> Self {
        Graphs {
            by_key: BTreeMap::new(),
            allows_inexact,
        }
    }

    pub fn insert(&mut self, key: GraphKey, lower: GraphKey, graph: G) {
        self.by_key.insert(key, Captured { lower, graph });
    }

    /// The graph for a batch, and what it was captured with: the batch itself, or, where graphs
    /// have lower bounds, the first that is nowhere smaller and whose bound is nowhere larger.
    pub fn find(&self, key: &[i64]) -> Option<(&GraphKey, &G)> {
        if let Some((exact, captured)) = self.by_key.get_key_value(key) {
            return Some((exact, &captured.graph));
        }
        if !self.allows_inexact {
            return None;
        }
        let mut larger = self.by_key.range(key.to_vec()..);
        let found = larger.find(|(known, captured)| {
            known.len() == key.len()
                && captured.lower.len() == key.len()
                && key.iter().zip(*known).all(|(dim, known)| dim <= known)
                && key
                    .iter()
                    .zip(&captured.lower)
                    .all(|(dim, lower)| dim >= lower)
        });
        found.map(|(known, captured)| (known, &captured.graph))
    }
}

#[cfg(test)]
mod tests {
    use sdk::serde_json::json;

    use super::*;

    fn read(batch: i64, cuda: Value, more: Value) -> Result<Option<GraphSpecs>, String> {
        let mut json = json!({"max_batch_size": batch, "optimization": {"cuda": cuda}});
        for (key, value) in more.as_object().unwrap() {
            json[key] = value.clone();
        }
        GraphSpecs::read(&ModelConfig::new(json)).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn usual_graphs() {
        let graphs = json!({"graphs": true});
        let preferred = json!({"preferred_batch_size": [2, 4]});
        for (batch, more, expected) in [
            (0, json!({}), &[0][..]),
            (8, json!({}), &[1, 2, 3, 4, 6, 8]),
            (5, json!({}), &[1, 2, 3, 4, 5]),
            (8, json!({"dynamic_batching": {}}), &[1, 8]),
            (8, json!({"dynamic_batching": preferred}), &[1, 2, 4, 8]),
            (
                8,
                json!({"sequence_batching": {"oldest": preferred}}),
                &[1, 2, 4, 8],
            ),
            (8, json!({"sequence_batching": {}}), &[1, 2, 3, 4, 6, 8]),
        ] {
            let specs = read(batch, graphs.clone(), more).unwrap().unwrap();
            let sizes: Vec<_> = specs.specs.iter().map(|spec| spec.batch_size).collect();
            assert_eq!(sizes, expected);
            assert!(!specs.allows_inexact);
        }
        assert_eq!(read(8, json!({}), json!({})), Ok(None));
        assert_eq!(read(8, json!({"graphs": false}), json!({})), Ok(None));
    }

    #[test]
    fn specs_are_read_and_checked() {
        let spec = |batch: i64, dim: i64, lower: Value| {
            let mut spec = json!({"batch_size": batch, "input": {"A": {"dim": [dim.to_string()]}}});
            if !lower.is_null() {
                spec["graph_lower_bound"] = lower;
            }
            read(8, json!({"graphs": true, "graph_spec": [spec]}), json!({}))
        };
        let lower =
            |batch: i64, dim: i64| json!({"batch_size": batch, "input": {"A": {"dim": [dim]}}});
        let found = spec(4, 16, lower(2, 8)).unwrap().unwrap();
        assert!(found.allows_inexact);
        assert_eq!(found.specs[0].lower_batch_size, 2);
        assert_eq!(found.specs[0].lower_shapes["A"], [8]);
        let found = spec(4, 16, Value::Null).unwrap().unwrap();
        assert!(!found.allows_inexact);
        assert_eq!(found.specs[0].lower_shapes["A"], [16]);
        for (found, expected) in [
            (
                spec(9, 16, Value::Null),
                "graph spec expects 'batch_size' to be >= 1 and <= 8",
            ),
            (
                spec(2, 16, lower(4, 8)),
                "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'",
            ),
            (
                spec(4, 16, lower(2, 17)),
                "graph lower bound spec expects input 'A' to have dimension <= 16",
            ),
            (
                spec(4, -1, Value::Null),
                "graph spec expects input 'A' to have dimension >= 0",
            ),
            (
                spec(4, 16, json!({"batch_size": 1})),
                "graph lower bound spec expects shape for input 'A'",
            ),
        ] {
            assert_eq!(found.unwrap_err(), expected);
        }
        let nothing = json!({"graphs": true, "graph_spec": [{"batch_size": 1}]});
        assert_eq!(
            read(0, nothing, json!({})).unwrap_err(),
            "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"
        );
    }

    #[test]
    fn graphs_are_found_exactly_or_by_their_bounds() {
        let graphs = |allows_inexact| {
            let mut graphs = Graphs::new(allows_inexact);
            graphs.insert(vec![4, 4, 16], vec![2, 2, 8], "four");
            graphs.insert(vec![8, 8, 16], vec![8, 8, 16], "eight");
            graphs
        };
        for (key, exact, inexact) in [
            (&[4, 4, 16][..], Some("four"), Some("four")),
            (&[8, 8, 16], Some("eight"), Some("eight")),
            (&[3, 3, 16], None, Some("four")),
            (&[2, 2, 8], None, Some("four")),
            (&[2, 2, 7], None, None),
            (&[1, 1, 16], None, None),
            (&[5, 5, 16], None, None),
            (&[4, 4], None, None),
        ] {
            let find = |allows| graphs(allows).find(key).map(|(_, graph)| *graph);
            assert_eq!((find(false), find(true)), (exact, inexact), "{key:?}");
        }
    }
}
