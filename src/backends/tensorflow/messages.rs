//! The parts of TensorFlow's protobuf messages that are read and written here; what a message has
//! besides is skipped. Numbers and types are those of TensorFlow's `.proto` files.

use std::collections::{BTreeMap, HashMap};

use prost::Message;

/// `saved_model.proto`: the file of a SavedModel.
#[derive(Clone, PartialEq, Message)]
pub struct SavedModel {
    #[prost(message, repeated, tag = "2")]
    pub meta_graphs: Vec<MetaGraphDef>,
}

/// `meta_graph.proto`: one graph of a SavedModel.
#[derive(Clone, PartialEq, Message)]
pub struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub meta_info_def: Option<MetaInfoDef>,
    #[prost(message, optional, tag = "2")]
    pub graph_def: Option<GraphDef>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub signature_def: BTreeMap<String, SignatureDef>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MetaInfoDef {
    /// By all of these together the graph is chosen.
    #[prost(string, repeated, tag = "4")]
    pub tags: Vec<String>,
}

/// A function of a SavedModel that clients may call.
#[derive(Clone, PartialEq, Message)]
pub struct SignatureDef {
    #[prost(btree_map = "string, message", tag = "1")]
    pub inputs: BTreeMap<String, TensorInfo>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub outputs: BTreeMap<String, TensorInfo>,
}

/// An input or output of a signature.
#[derive(Clone, PartialEq, Message)]
pub struct TensorInfo {
    /// The tensor in the graph, such as `serving_default_x:0`; empty for sparse and composite ones.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `DataType` of `types.proto`.
    #[prost(int32, tag = "2")]
    pub dtype: i32,
    #[prost(message, optional, tag = "3")]
    pub tensor_shape: Option<TensorShapeProto>,
}

/// `tensor_shape.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub unknown_rank: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

/// `graph.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeDef>,
    #[prost(message, optional, tag = "2")]
    pub library: Option<FunctionDefLibrary>,
}

impl GraphDef {
    pub fn functions_by_name(&self) -> HashMap<&str, &FunctionDef> {
        self.library
            .iter()
            .flat_map(|library| &library.function)
            .filter_map(|function| Some((function.signature.as_ref()?.name.as_str(), function)))
            .collect()
    }
}

/// `node_def.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct NodeDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub op: String,
    #[prost(string, repeated, tag = "3")]
    pub input: Vec<String>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attr: BTreeMap<String, AttrValue>,
}

/// `attr_value.proto`: only numbers, types, functions that an attribute names, and tensors that it
/// has.
#[derive(Clone, PartialEq, Message)]
pub struct AttrValue {
    #[prost(message, optional, tag = "1")]
    pub list: Option<ListValue>,
    #[prost(int64, tag = "3")]
    pub i: i64,
    /// `DataType` of `types.proto`.
    #[prost(int32, tag = "6")]
    pub r#type: i32,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<TensorProto>,
    #[prost(message, optional, tag = "10")]
    pub func: Option<NameAttrList>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "8")]
    pub tensor: Vec<TensorProto>,
    #[prost(message, repeated, tag = "9")]
    pub func: Vec<NameAttrList>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NameAttrList {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// `tensor.proto`: type and shape alone.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorShapeProto>,
}

/// `function.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionDefLibrary {
    #[prost(message, repeated, tag = "1")]
    pub function: Vec<FunctionDef>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FunctionDef {
    #[prost(message, optional, tag = "1")]
    pub signature: Option<OpDef>,
    #[prost(message, repeated, tag = "3")]
    pub node_def: Vec<NodeDef>,
    /// What results are, by their names.
    #[prost(btree_map = "string, string", tag = "4")]
    pub ret: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub control_ret: BTreeMap<String, String>,
}

/// `op_def.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct OpDef {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input_arg: Vec<ArgDef>,
    #[prost(bool, tag = "17")]
    pub is_stateful: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct ArgDef {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// All operators that a library has.
#[derive(Clone, PartialEq, Message)]
pub struct OpList {
    #[prost(message, repeated, tag = "1")]
    pub op: Vec<OpDef>,
}

/// `config.proto`: the options of a session.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigProto {
    /// Devices by type: at most so many of them are used.
    #[prost(btree_map = "string, int32", tag = "1")]
    pub device_count: BTreeMap<String, i32>,
    #[prost(int32, tag = "2")]
    pub intra_op_parallelism_threads: i32,
    #[prost(int32, tag = "5")]
    pub inter_op_parallelism_threads: i32,
    #[prost(bool, tag = "7")]
    pub allow_soft_placement: bool,
    #[prost(bool, tag = "9")]
    pub use_per_session_threads: bool,
    #[prost(message, optional, tag = "10")]
    pub graph_options: Option<GraphOptions>,
    #[prost(message, optional, tag = "16")]
    pub experimental: Option<ExperimentalConfig>,
}

/// `ConfigProto.Experimental`.
#[derive(Clone, PartialEq, Message)]
pub struct ExperimentalConfig {
    /// Threads sleep when they have nothing to do, instead of looking for work for a while.
    #[prost(bool, tag = "9")]
    pub disable_thread_spinning: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphOptions {
    #[prost(message, optional, tag = "3")]
    pub optimizer_options: Option<OptimizerOptions>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OptimizerOptions {
    /// `OptimizerOptions.GlobalJitLevel`: -1 off, 0 the default, 1 and 2 on.
    #[prost(int32, tag = "5")]
    pub global_jit_level: i32,
}
