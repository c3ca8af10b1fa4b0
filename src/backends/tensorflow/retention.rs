//! Whether a graph may keep an input beyond the run that it was fed to.
//!
//! TensorFlow can read a request's inputs where they lie. Tensors are counted references, so a
//! graph that assigns an input to a variable, or puts it into a queue, keeps the request's own
//! memory, which the server gives to others after the run. Such graphs get copies. A graph keeps
//! nothing if all operators that its outputs may reach are stateless, or of those that are known
//! only to read what they keep.

use std::collections::{HashMap, HashSet};

use crate::messages::{GraphDef, NodeDef, OpList};
use crate::signature::split_name;

/// Stateful operators that keep no input: readers of variables and tables, calls and control flow,
/// random numbers, and what ends with the run.
const HARMLESS: [&str; 47] = [
    "AnonymousHashTable",
    "Assert",
    "Case",
    "HashTable",
    "HashTableV2",
    "If",
    "IsVariableInitialized",
    "LookupTableFind",
    "LookupTableFindV2",
    "LookupTableSize",
    "LookupTableSizeV2",
    "Multinomial",
    "MutableDenseHashTableV2",
    "MutableHashTableV2",
    "ParameterizedTruncatedNormal",
    "PartitionedCall",
    "Placeholder",
    "Print",
    "PrintV2",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "StatefulPartitionedCall",
    "TensorArrayCloseV3",
    "TensorArrayConcatV3",
    "TensorArrayGatherV3",
    "TensorArrayReadV3",
    "TensorArrayScatterV3",
    "TensorArraySizeV3",
    "TensorArraySplitV3",
    "TensorArrayV3",
    "TensorArrayWriteV3",
    "TruncatedNormal",
    "VarHandleOp",
    "VarIsInitializedOp",
    "Variable",
    "VariableShape",
    "VariableV2",
    "While",
    "_ReadVariablesOp",
    "_VarHandlesOp",
];

/// Whether a run that fetches outputs of these operations may keep its inputs. `operators` are all
/// that TensorFlow has.
pub fn may_keep_inputs<'g>(
    graph: &'g GraphDef,
    operators: &OpList,
    outputs: impl Iterator<Item = &'g str>,
) -> bool {
    let is_stateful: HashMap<&str, bool> = operators
        .op
        .iter()
        .map(|operator| (operator.name.as_str(), operator.is_stateful))
        .collect();
    let functions = graph.functions_by_name();
    let nodes: HashMap<&str, &NodeDef> = graph
        .node
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();

    let mut seen_nodes: HashSet<&str> = HashSet::new();
    let mut seen_functions: HashSet<&str> = HashSet::new();
    let mut open_nodes: Vec<&str> = outputs.collect();
    let mut open_functions: Vec<&str> = Vec::new();
    // Whether the node is a danger itself; what it calls is looked at later.
    let look = |node: &'g NodeDef, open_functions: &mut Vec<&'g str>| {
        open_functions.extend(called(node));
        if functions.contains_key(node.op.as_str()) {
            open_functions.push(&node.op);
            return false;
        }
        let is_stateful = is_stateful.get(node.op.as_str()).copied().unwrap_or(true);
        is_stateful && !HARMLESS.contains(&node.op.as_str())
    };
    loop {
        if let Some(name) = open_nodes.pop() {
            let Some(&node) = nodes.get(name) else {
                return true;
            };
            if !seen_nodes.insert(&node.name) {
                continue;
            }
            if look(node, &mut open_functions) {
                return true;
            }
            open_nodes.extend(node.input.iter().filter_map(|input| source(input)));
        } else if let Some(name) = open_functions.pop() {
            let Some(&function) = functions.get(name) else {
                return true;
            };
            if !seen_functions.insert(name) {
                continue;
            }
            if function
                .node_def
                .iter()
                .any(|node| look(node, &mut open_functions))
            {
                return true;
            }
        } else {
            return false;
        }
    }
}

/// Functions that a node names in its attributes.
fn called(node: &NodeDef) -> impl Iterator<Item = &str> {
    let attributes = node.attr.values();
    attributes.flat_map(|attribute| {
        let listed = attribute.list.iter().flat_map(|list| &list.func);
        let named = attribute.func.iter().chain(listed);
        named.map(|function| function.name.as_str())
    })
}

/// The operation that an input of a node comes from: `name`, `name:index`, or `^name` for one that
/// only has to run before.
fn source(input: &str) -> Option<&str> {
    let input = input.strip_prefix('^').unwrap_or(input);
    split_name(input).map(|(operation, _)| operation)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::messages::{
        AttrValue, FunctionDef, FunctionDefLibrary, ListValue, NameAttrList, OpDef,
    };

    fn node(name: &str, op: &str, inputs: &[&str]) -> NodeDef {
        NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            attr: BTreeMap::new(),
        }
    }

    fn calls(mut node: NodeDef, function: &str, in_list: bool) -> NodeDef {
        let func = NameAttrList {
            name: function.to_owned(),
        };
        let value = if in_list {
            AttrValue {
                list: Some(ListValue {
                    func: vec![func],
                    ..ListValue::default()
                }),
                ..AttrValue::default()
            }
        } else {
            AttrValue {
                func: Some(func),
                ..AttrValue::default()
            }
        };
        node.attr.insert("f".to_owned(), value);
        node
    }

    fn function(name: &str, nodes: Vec<NodeDef>) -> FunctionDef {
        FunctionDef {
            signature: Some(OpDef {
                name: name.to_owned(),
                ..OpDef::default()
            }),
            node_def: nodes,
            ..FunctionDef::default()
        }
    }

    fn check(nodes: Vec<NodeDef>, functions: Vec<FunctionDef>, expected: bool) {
        let operator = |name: &str, is_stateful| OpDef {
            name: name.to_owned(),
            is_stateful,
            ..OpDef::default()
        };
        let operators = OpList {
            op: vec![
                operator("Add", false),
                operator("Placeholder", false),
                operator("StatefulPartitionedCall", true),
                operator("While", true),
                operator("ReadVariableOp", true),
                operator("AssignVariableOp", true),
            ],
        };
        let graph = GraphDef {
            node: nodes,
            library: Some(FunctionDefLibrary {
                function: functions,
            }),
        };
        let outputs = ["y"].into_iter();
        assert_eq!(
            may_keep_inputs(&graph, &operators, outputs),
            expected,
            "{graph:?}"
        );
    }

    #[test]
    fn graphs_that_keep_nothing() {
        let x = || node("x", "Placeholder", &[]);
        check(vec![x(), node("y", "Add", &["x", "x:0"])], vec![], false);
        // Assigned by what no output needs, such as the restoring of variables.
        let restore = || node("restore", "AssignVariableOp", &["x"]);
        check(
            vec![x(), restore(), node("y", "Add", &["x"])],
            vec![],
            false,
        );
        let call = || calls(node("y", "StatefulPartitionedCall", &["x"]), "f", false);
        let reads = function("f", vec![node("v", "ReadVariableOp", &["h"])]);
        check(vec![x(), call()], vec![reads], false);
        // Functions that call each other.
        let first = function("f", vec![calls(node("c", "While", &["a"]), "g", true)]);
        let second = function("g", vec![node("c", "f", &["a"])]);
        check(vec![x(), call()], vec![first, second], false);
    }

    #[test]
    fn graphs_that_may_keep_something() {
        let x = || node("x", "Placeholder", &[]);
        let assign = |name: &str| node(name, "AssignVariableOp", &["v", "x"]);
        check(vec![x(), assign("y")], vec![], true);
        // Reached by order alone.
        let y = node("y", "Add", &["x", "^z"]);
        check(vec![x(), assign("z"), y], vec![], true);
        let call = || calls(node("y", "StatefulPartitionedCall", &["x"]), "f", false);
        check(
            vec![x(), call()],
            vec![function("f", vec![assign("z")])],
            true,
        );
        // What nobody knows.
        check(vec![x(), call()], vec![], true);
        check(vec![x(), node("y", "Unheard", &["x"])], vec![], true);
        check(vec![x()], vec![], true);
        check(vec![node("y", "Add", &["absent"])], vec![], true);
    }
}
