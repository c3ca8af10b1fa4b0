//! What TensorFlow takes for granted of a graph. It ends the process, or reads what is not there,
//! where a file has something else, so that is refused here.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use conch_backend_sdk as sdk;
use sdk::{Error, element_count};

use crate::messages::{FunctionDef, GraphDef, NodeDef, TensorProto};

/// `TensorShape::MaxDimensions()`: with more, TensorFlow ends the process.
pub const RANK_MAX: usize = 254;

/// Elements of a constant. A file needs one number for a constant of any size, and TensorFlow waits
/// for the memory that it then does not get, 10 s each time that it looks at it.
const ELEMENTS_MAX: usize = 1 << 38;

/// Inputs of an operation: TensorFlow makes room for as many as the file says.
const INPUT_COUNT_MAX: i64 = 1 << 20;

/// Above the numbers of all element types that constants besides those of `Const` are known to
/// have. TensorFlow ends the process at others.
const ELEMENT_TYPES_END: i32 = 24;

/// Checks constants and loops of a graph and of its functions, and how functions are put together;
/// how the graph itself is, TensorFlow checks.
///
/// # Errors
/// `Internal` with the first thing that is wrong.
pub fn check(path: &Path, graph: &GraphDef) -> Result<(), Error> {
    let refuse = |what: String| Error::internal(format!("{}: {what}", path.display()));
    let functions = graph.library.iter().flat_map(|library| &library.function);
    let inside = functions.clone().flat_map(|function| &function.node_def);
    let nodes = graph.node.iter().chain(inside);
    if let Some(node) = nodes.clone().find(|node| !has_possible_constants(node)) {
        return Err(refuse(format!(
            "operation '{}' has a constant of an impossible shape",
            node.name
        )));
    }
    if let Some(node) = nodes.clone().find(|node| !has_possible_types(node)) {
        return Err(refuse(format!(
            "operation '{}' has a constant of another type than it says",
            node.name
        )));
    }
    if let Some(node) = nodes.clone().find(|node| !has_possible_count(node)) {
        return Err(refuse(format!(
            "operation '{}' has an impossible number of inputs",
            node.name
        )));
    }
    let bodies = functions.clone().map(|function| &function.node_def);
    let mut bodies = bodies.chain([&graph.node]);
    if let Some(name) = bodies.find_map(|nodes| exit_of_no_loop(nodes)) {
        return Err(refuse(format!(
            "operation '{name}' leaves a loop which nothing enters"
        )));
    }
    for function in functions {
        let name = function
            .signature
            .as_ref()
            .map_or("", |operator| &operator.name);
        check_function(function).map_err(|what| refuse(format!("function '{name}' {what}")))?;
    }
    match endless_function(graph) {
        None => Ok(()),
        Some(name) => Err(refuse(format!(
            "function '{name}' calls itself without end"
        ))),
    }
}

/// Each operation has a name of its own, and takes what an operation or an argument gives; and so
/// do the results.
fn check_function(function: &FunctionDef) -> Result<(), String> {
    let arguments = function
        .signature
        .iter()
        .flat_map(|operator| &operator.input_arg);
    let operations = function.node_def.iter().map(|node| &node.name);
    let mut names = HashSet::new();
    for name in arguments.map(|argument| &argument.name).chain(operations) {
        if name.is_empty() {
            return Err("has an operation without a name".to_owned());
        }
        if !names.insert(name.as_str()) {
            return Err(format!("has two operations '{name}'"));
        }
    }
    let taken = function.node_def.iter().flat_map(|node| &node.input);
    let results = function.ret.values().chain(function.control_ret.values());
    match taken
        .chain(results)
        .find(|input| !names.contains(source(input)))
    {
        None => Ok(()),
        Some(input) => Err(format!("has no operation '{}'", source(input))),
    }
}

/// An operation that leaves a loop which nothing enters. TensorFlow would throw an exception.
fn exit_of_no_loop(nodes: &[NodeDef]) -> Option<&str> {
    let is = |node: &NodeDef, operators: [&str; 2]| operators.contains(&node.op.as_str());
    let mut exits = nodes.iter().filter(|node| is(node, ["Exit", "RefExit"]));
    // Most graphs have none.
    exits.clone().next()?;
    let mut takers: HashMap<&str, Vec<&NodeDef>> = HashMap::new();
    for node in nodes {
        for input in &node.input {
            takers.entry(source(input)).or_default().push(node);
        }
    }
    let mut inside: HashSet<&str> = HashSet::new();
    let mut open: Vec<&NodeDef> = nodes
        .iter()
        .filter(|node| is(node, ["Enter", "RefEnter"]))
        .collect();
    while let Some(node) = open.pop() {
        if inside.insert(&node.name) {
            open.extend(takers.get(node.name.as_str()).into_iter().flatten());
        }
    }
    let exit = exits.find(|node| !inside.contains(node.name.as_str()))?;
    Some(&exit.name)
}

/// A function that calls itself by all means, with others in between or not. TensorFlow follows
/// calls to the end to find shapes. Those that depend on a condition it does not follow.
fn endless_function(graph: &GraphDef) -> Option<&str> {
    let functions = graph.functions_by_name();
    // Nothing is known of a function, or it is being followed, or it ends.
    let mut ends: HashMap<&str, bool> = HashMap::new();
    // Those that are being followed, each with the calls that are left. Not by recursion, since a
    // file decides how deep it is.
    let mut open = Vec::new();
    for &name in functions.keys() {
        let mut next = Some(name);
        loop {
            if let Some(name) = next
                && let Some(function) = functions.get(name)
            {
                match ends.get(name) {
                    Some(true) => {}
                    Some(false) => return Some(name),
                    None => {
                        ends.insert(name, false);
                        open.push((name, function.node_def.iter()));
                    }
                }
            }
            let Some((name, nodes)) = open.last_mut() else {
                break;
            };
            next = nodes.find_map(called);
            if next.is_none() {
                ends.insert(name, true);
                open.pop();
            }
        }
    }
    None
}

/// What a node calls whatever its inputs are.
fn called(node: &NodeDef) -> Option<&str> {
    match node.op.as_str() {
        "PartitionedCall" | "StatefulPartitionedCall" => {
            let function = node.attr.get("f")?.func.as_ref()?;
            Some(&function.name)
        }
        operator => Some(operator),
    }
}

/// Whose output it is: of `argument`, `operation:output:index`, or `^operation`, which only has to
/// run before.
fn source(input: &str) -> &str {
    let input = input.strip_prefix('^').unwrap_or(input);
    input.split_once(':').map_or(input, |(name, _)| name)
}

fn has_possible_constants(node: &NodeDef) -> bool {
    tensors_of(node).all(is_possible)
}

/// Tensors in the attributes of a node.
fn tensors_of(node: &NodeDef) -> impl Iterator<Item = &TensorProto> {
    node.attr.values().flat_map(|attribute| {
        let listed = attribute.list.iter().flat_map(|list| &list.tensor);
        attribute.tensor.iter().chain(listed)
    })
}

/// Whether constants have types that TensorFlow can have, and a `Const` the one that it says; what
/// that may be, TensorFlow checks.
fn has_possible_types(node: &NodeDef) -> bool {
    // None where a function leaves it to its caller.
    let said = node.attr.get("dtype").map(|attribute| attribute.r#type);
    let said = said.filter(|&number| number != 0 && node.op == "Const");
    tensors_of(node).all(|tensor| match said {
        Some(number) => tensor.dtype == number,
        None => (0..ELEMENT_TYPES_END).contains(&tensor.dtype),
    })
}

/// Whether as many inputs as an operation says to have, if it takes any number, can be.
fn has_possible_count(node: &NodeDef) -> bool {
    let count = node.attr.get("N").map_or(0, |attribute| attribute.i);
    (0..=INPUT_COUNT_MAX).contains(&count)
}

/// Whether there can be memory for the elements of a constant.
fn is_possible(tensor: &TensorProto) -> bool {
    let Some(shape) = &tensor.tensor_shape else {
        return true;
    };
    let dims: Vec<_> = shape.dim.iter().map(|dim| dim.size).collect();
    dims.len() <= RANK_MAX && element_count(&dims).is_some_and(|count| count <= ELEMENTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{
        ArgDef, AttrValue, Dim, FunctionDefLibrary, ListValue, NameAttrList, OpDef,
        TensorShapeProto,
    };

    fn of_type(number: i32) -> AttrValue {
        AttrValue {
            r#type: number,
            ..AttrValue::default()
        }
    }

    #[test]
    fn refuses_constants_of_other_types() {
        for (operator, said, is, expected) in [
            ("Const", Some(1), 1, true),
            ("Const", Some(1), 3, false),
            ("Const", Some(1), 98, false),
            ("Const", None, 1, true),
            ("Const", Some(0), 98, false),
            // Whether there is such a type, TensorFlow says.
            ("Const", Some(25), 25, true),
            ("Other", Some(1), 3, true),
            ("Other", None, 98, false),
            ("Other", None, -1, false),
        ] {
            let value = AttrValue {
                tensor: Some(TensorProto {
                    dtype: is,
                    tensor_shape: None,
                }),
                ..AttrValue::default()
            };
            let said_type = said.map(|number| ("dtype".to_owned(), of_type(number)));
            let node = NodeDef {
                op: operator.to_owned(),
                attr: said_type
                    .into_iter()
                    .chain([("value".to_owned(), value)])
                    .collect(),
                ..NodeDef::default()
            };
            assert_eq!(
                has_possible_types(&node),
                expected,
                "{operator} {said:?} {is}"
            );
        }
    }

    #[test]
    fn refuses_constants_of_impossible_shapes() {
        let check_dims = |dims: &[i64]| {
            let shape = TensorShapeProto {
                dim: dims.iter().map(|&size| Dim { size }).collect(),
                unknown_rank: false,
            };
            let tensor = TensorProto {
                dtype: 1,
                tensor_shape: Some(shape),
            };
            let value = |in_list: bool| AttrValue {
                tensor: (!in_list).then(|| tensor.clone()),
                list: in_list.then(|| ListValue {
                    tensor: vec![tensor.clone()],
                    ..ListValue::default()
                }),
                ..AttrValue::default()
            };
            let node = |in_list| NodeDef {
                name: "c".to_owned(),
                op: "Const".to_owned(),
                attr: [
                    ("value".to_owned(), value(in_list)),
                    ("dtype".to_owned(), of_type(1)),
                ]
                .into(),
                ..NodeDef::default()
            };
            let is_fine = is_possible(&tensor);
            let functions = FunctionDefLibrary {
                function: vec![FunctionDef {
                    node_def: vec![node(true)],
                    ..FunctionDef::default()
                }],
            };
            for graph in [
                GraphDef {
                    node: vec![node(false)],
                    library: None,
                },
                GraphDef {
                    node: vec![],
                    library: Some(functions),
                },
            ] {
                assert_eq!(check(Path::new("f"), &graph).is_ok(), is_fine);
            }
            is_fine
        };
        for (dims, expected) in [
            (&[][..], true),
            (&[2, 0, 3], true),
            (&[1 << 30, 1 << 8], true),
            (&[1 << 30, 1 << 9], false),
            (&[1 << 31, 1 << 31], false),
            (&[i64::MAX], false),
            (&[2, -1], false),
            (&[0, i64::MAX, i64::MAX], true),
            (&[1; 254], true),
            (&[1; 255], false),
        ] {
            assert_eq!(check_dims(dims), expected, "{dims:?}");
        }
    }

    #[test]
    fn refuses_functions_that_do_not_hang_together() {
        let check = |nodes: &[(&str, &[&str])], result: &str| {
            let node = |&(name, inputs): &(&str, &[&str])| NodeDef {
                name: name.to_owned(),
                input: inputs.iter().map(|&input| input.to_owned()).collect(),
                ..NodeDef::default()
            };
            let function = FunctionDef {
                signature: Some(OpDef {
                    name: "f".to_owned(),
                    input_arg: vec![ArgDef {
                        name: "x".to_owned(),
                    }],
                    ..OpDef::default()
                }),
                node_def: nodes.iter().map(node).collect(),
                ret: [("y".to_owned(), result.to_owned())].into(),
                ..FunctionDef::default()
            };
            check_function(&function).err().unwrap_or_default()
        };
        let a: (&str, &[&str]) = ("a", &["x"]);
        for (nodes, result, expected) in [
            (&[][..], "x", ""),
            (&[a, ("b", &["a:z:0", "^a", "x:0"])], "b:y:0", ""),
            (&[a], "b:y:0", "has no operation 'b'"),
            (&[("a", &["b"])], "x", "has no operation 'b'"),
            (&[("a", &["^b"])], "x", "has no operation 'b'"),
            (&[("a", &[""])], "x", "has no operation ''"),
            (&[a, ("", &[])], "x", "has an operation without a name"),
            (&[a, a], "x", "has two operations 'a'"),
            (&[("x", &[])], "x", "has two operations 'x'"),
        ] {
            assert_eq!(check(nodes, result), expected, "{nodes:?} {result}");
        }
    }

    #[test]
    fn refuses_impossible_numbers_of_inputs() {
        for (count, expected) in [(2, true), (0, true), (-5, false), (i64::MAX, false)] {
            let value = AttrValue {
                i: count,
                ..AttrValue::default()
            };
            let graph = GraphDef {
                node: vec![NodeDef {
                    attr: [("N".to_owned(), value)].into(),
                    ..NodeDef::default()
                }],
                library: None,
            };
            let checked = check(Path::new("f"), &graph);
            assert_eq!(checked.is_ok(), expected, "{count}");
        }
    }

    #[test]
    fn refuses_exits_of_no_loop() {
        let check = |nodes: &[(&str, &str, &[&str])]| {
            let node = |&(name, op, inputs): &(&str, &str, &[&str])| NodeDef {
                name: name.to_owned(),
                op: op.to_owned(),
                input: inputs.iter().map(|&input| input.to_owned()).collect(),
                ..NodeDef::default()
            };
            let nodes: Vec<_> = nodes.iter().map(node).collect();
            exit_of_no_loop(&nodes).map(str::to_owned)
        };
        assert_eq!(check(&[("a", "Add", &["b"])]), None);
        let exit: (&str, &str, &[&str]) = ("exit", "Exit", &["switch:1"]);
        let looped: [(&str, &str, &[&str]); 5] = [
            ("enter", "Enter", &["x"]),
            ("merge", "Merge", &["enter", "next"]),
            ("switch", "Switch", &["merge:0", "^limit"]),
            ("next", "NextIteration", &["switch"]),
            exit,
        ];
        assert_eq!(check(&looped), None);
        assert_eq!(check(&looped[1..]).as_deref(), Some("exit"));
        assert_eq!(check(&[("a", "RefExit", &["x:y:0"])]).as_deref(), Some("a"));
    }

    #[test]
    fn refuses_functions_that_call_themselves() {
        let check = |calls: &[(&str, &[(&str, &str)])]| {
            let node = |&(op, function): &(&str, &str)| {
                let func = NameAttrList {
                    name: function.to_owned(),
                };
                let value = AttrValue {
                    func: Some(func),
                    ..AttrValue::default()
                };
                NodeDef {
                    op: op.to_owned(),
                    attr: [("f".to_owned(), value)].into(),
                    ..NodeDef::default()
                }
            };
            let function = |&(name, calls): &(&str, &[(&str, &str)])| FunctionDef {
                signature: Some(OpDef {
                    name: name.to_owned(),
                    ..OpDef::default()
                }),
                node_def: calls.iter().map(node).collect(),
                ..FunctionDef::default()
            };
            let graph = GraphDef {
                node: vec![],
                library: Some(FunctionDefLibrary {
                    function: calls.iter().map(function).collect(),
                }),
            };
            endless_function(&graph).is_some()
        };
        let call = "PartitionedCall";
        assert!(!check(&[]));
        assert!(!check(&[
            ("f", &[(call, "g"), ("g", ""), ("Add", "")]),
            ("g", &[])
        ]));
        assert!(!check(&[("f", &[(call, "absent"), ("If", "f")])]));
        assert!(check(&[("f", &[("Add", ""), (call, "f")])]));
        assert!(check(&[("f", &[("f", "")])]));
        assert!(check(&[
            ("a", &[("StatefulPartitionedCall", "b")]),
            ("b", &[("Add", ""), ("c", "")]),
            ("c", &[(call, "b")]),
        ]));
        // Two ways to the same one.
        assert!(!check(&[
            ("a", &[(call, "b"), (call, "c")]),
            ("b", &[(call, "d")]),
            ("c", &[(call, "d")]),
            ("d", &[]),
        ]));
        let names: Vec<_> = (0..10_000).map(|number| format!("f{number}")).collect();
        let chain: Vec<_> = names
            .windows(2)
            .map(|pair| (pair[0].as_str(), [(call, pair[1].as_str())]))
            .collect();
        let chain: Vec<_> = chain
            .iter()
            .map(|(name, calls)| (*name, &calls[..]))
            .collect();
        assert!(!check(&chain));
    }
}
