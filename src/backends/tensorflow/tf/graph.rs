//! A graph with its session.

use std::ffi::{CStr, CString, c_int};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use conch_backend_sdk as sdk;
use sdk::Error;
use sdk::engine::{Feed, c_path};

use super::library::Library;
use super::options::RawOptions;
use super::table::{TF_Buffer, TF_Graph, TF_Operation, TF_Output, TF_Session, contents};
use super::tensor::{Output, Tensor};
use crate::messages::ConfigProto;

/// A tensor of a graph: an output of one of its operations. Only for the graph that gave it.
#[derive(Clone, Copy)]
pub struct Port {
    raw: TF_Output,
}

// SAFETY: a number and an address inside of a graph, which is only followed with that graph.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

/// A graph and the session that runs it, on any number of threads at once.
pub struct Graph {
    library: Arc<Library>,
    graph: NonNull<TF_Graph>,
    session: NonNull<TF_Session>,
}

// SAFETY: sessions and graphs may be used by any thread, and by several at once, by the C API's
// documentation.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// The graph of a `GraphDef`; no message is a graph without operations.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words.
    pub fn import(
        library: &Arc<Library>,
        message: &[u8],
        config: &ConfigProto,
    ) -> Result<Self, Error> {
        let table = &library.table;
        let options = RawOptions::new(library, config)?;
        let graph = NewGraph::new(library)?;
        let buffer = TF_Buffer {
            data: message.as_ptr().cast(),
            length: message.len(),
            data_deallocator: None,
        };
        // SAFETY: the graph is live and new, the message is read during the call; the options are
        // made and deleted here.
        unsafe {
            let import = (table.new_import_options)();
            let imported = table.check(|status| {
                (table.import)(graph.raw.as_ptr(), &raw const buffer, import, status);
            });
            (table.delete_import_options)(import);
            imported?;
        }
        // SAFETY: graph and options are live. The session keeps what it needs of them.
        let session = unsafe {
            table
                .check(|status| (table.new_session)(graph.raw.as_ptr(), options.as_ptr(), status))?
        };
        graph.with_session(session)
    }

    /// The graph of a SavedModel that has all these tags, restored, and its `MetaGraphDef`, which
    /// `read` makes something of.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words; those of `read`.
    pub fn load<T>(
        library: &Arc<Library>,
        folder: &Path,
        tags: &[CString],
        config: &ConfigProto,
        read: impl FnOnce(&[u8]) -> Result<T, Error>,
    ) -> Result<(Self, T), Error> {
        let table = &library.table;
        let options = RawOptions::new(library, config)?;
        let graph = NewGraph::new(library)?;
        let folder = c_path(folder)?;
        let tag_pointers: Vec<_> = tags.iter().map(|tag| tag.as_ptr()).collect();
        let tag_count = count(tag_pointers.len())?;
        let meta = MetaGraph::new(library)?;
        // SAFETY: all arguments are live during the call, the path and the tags NUL-terminated; the
        // graph is new, and so is the buffer.
        let session = unsafe {
            table.check(|status| {
                (table.load_saved_model)(
                    options.as_ptr(),
                    ptr::null(),
                    folder.as_ptr(),
                    tag_pointers.as_ptr(),
                    tag_count,
                    graph.raw.as_ptr(),
                    meta.raw.as_ptr(),
                    status,
                )
            })?
        };
        let graph = graph.with_session(session)?;
        // SAFETY: written by the call above, and by nobody afterwards.
        let value = read(unsafe { contents(meta.raw.as_ptr()) })?;
        Ok((graph, value))
    }

    /// Output `index` of the operation `name`.
    pub fn port(&self, name: &CStr, index: u32) -> Option<Port> {
        let operation = self.operation(name)?;
        let index = c_int::try_from(index).ok()?;
        // SAFETY: the operation is one of this graph.
        let output_count = unsafe { (self.library.table.output_count)(operation) };
        (index < output_count).then_some(Port {
            raw: TF_Output { operation, index },
        })
    }

    /// The element type of a tensor of this graph, as TensorFlow's number.
    pub fn element_type(&self, port: Port) -> i32 {
        // SAFETY: a tensor of this graph.
        unsafe { (self.library.table.output_type)(port.raw) }
    }

    /// Whether a tensor of this graph is known to be a scalar.
    pub fn is_scalar(&self, port: Port) -> bool {
        let table = &self.library.table;
        // SAFETY: the graph is live, and the tensor its own.
        let rank =
            unsafe { table.check(|status| (table.rank)(self.graph.as_ptr(), port.raw, status)) };
        rank == Ok(0)
    }

    /// Runs an operation that has no outputs of interest, such as an initialiser.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words; `InvalidArgument` if there is no such operation.
    pub fn run_operation(&self, name: &CStr) -> Result<(), Error> {
        let operation = self.operation(name).ok_or_else(|| {
            let name = name.to_string_lossy();
            Error::invalid(format!("the graph has no operation '{name}'"))
        })?;
        let table = &self.library.table;
        let operations = [operation.cast_const()];
        // SAFETY: the session is live, the operation one of its graph's; there are no inputs and
        // outputs.
        unsafe {
            table.check(|status| {
                (table.run)(
                    self.session.as_ptr(),
                    ptr::null(),
                    ptr::null(),
                    ptr::null(),
                    0,
                    ptr::null(),
                    ptr::null_mut(),
                    0,
                    operations.as_ptr(),
                    1,
                    ptr::null_mut(),
                    status,
                );
            })
        }
    }

    /// Feeds `feeds` at `inputs` and fetches what is at `outputs`. With `lends`, TensorFlow reads
    /// inputs where they lie if their addresses suit it; else it gets copies.
    ///
    /// # Errors
    /// `Internal` with TensorFlow's own words; `InvalidArgument` if a feed's bytes do not make a
    /// tensor; `Unavailable` without memory.
    pub fn run(
        &self,
        feeds: &[Feed<'_>],
        inputs: &[Port],
        outputs: &[Port],
        lends: bool,
    ) -> Result<Vec<Output>, Error> {
        let table = &self.library.table;
        let tensors = feeds
            .iter()
            .map(|feed| Tensor::of(&self.library, feed, lends))
            .collect::<Result<Vec<_>, _>>()?;
        if tensors.len() != inputs.len() {
            return Err(Error::internal("as many feeds as inputs are needed"));
        }
        let values: Vec<_> = tensors.iter().map(Tensor::as_ptr).collect();
        let sources: Vec<_> = inputs.iter().map(|port| port.raw).collect();
        let wanted: Vec<_> = outputs.iter().map(|port| port.raw).collect();
        let mut made = vec![ptr::null_mut(); wanted.len()];
        let (input_count, output_count) = (count(values.len())?, count(made.len())?);
        // SAFETY: the session is live; the arrays have the lengths given, and ports are of its
        // graph; the tensors live until after the call, and with them the memory that they borrow
        // of `feeds`.
        let ran = unsafe {
            table.check(|status| {
                (table.run)(
                    self.session.as_ptr(),
                    ptr::null(),
                    sources.as_ptr(),
                    values.as_ptr(),
                    input_count,
                    wanted.as_ptr(),
                    made.as_mut_ptr(),
                    output_count,
                    ptr::null(),
                    0,
                    ptr::null_mut(),
                    status,
                );
            })
        };
        // Owned before anything can fail, so that none leaks.
        let made: Vec<_> = made
            .into_iter()
            .map(|tensor| {
                // SAFETY: null, or made by the run and ours from now on.
                unsafe { Output::own(&self.library, tensor, &tensors) }
            })
            .collect();
        ran?;
        made.into_iter()
            .map(|output| output.ok_or_else(|| Error::internal("TensorFlow gave no output")))
            .collect()
    }

    fn operation(&self, name: &CStr) -> Option<*mut TF_Operation> {
        // SAFETY: the graph is live, the name NUL-terminated.
        let operation =
            unsafe { (self.library.table.operation)(self.graph.as_ptr(), name.as_ptr()) };
        (!operation.is_null()).then_some(operation)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let table = &self.library.table;
        // SAFETY: both are ours, and no run is going on. The session is freed whatever is said.
        let ended = unsafe {
            let closed = table.check(|status| (table.close_session)(self.session.as_ptr(), status));
            let deleted =
                table.check(|status| (table.delete_session)(self.session.as_ptr(), status));
            (table.delete_graph)(self.graph.as_ptr());
            closed.and(deleted)
        };
        if let Err(error) = ended {
            sdk::error!("failed to end a TensorFlow session: {error}");
        }
    }
}

/// A graph that has no session yet.
struct NewGraph<'l> {
    library: &'l Arc<Library>,
    raw: NonNull<TF_Graph>,
}

impl<'l> NewGraph<'l> {
    fn new(library: &'l Arc<Library>) -> Result<Self, Error> {
        // SAFETY: makes a graph, which the wrapper owns.
        let raw = NonNull::new(unsafe { (library.table.new_graph)() })
            .ok_or_else(|| Error::internal("TensorFlow gave no graph"))?;
        Ok(NewGraph { library, raw })
    }

    fn with_session(self, session: *mut TF_Session) -> Result<Graph, Error> {
        let session =
            NonNull::new(session).ok_or_else(|| Error::internal("TensorFlow gave no session"))?;
        let graph = Graph {
            library: Arc::clone(self.library),
            graph: self.raw,
            session,
        };
        std::mem::forget(self);
        Ok(graph)
    }
}

impl Drop for NewGraph<'_> {
    fn drop(&mut self) {
        // SAFETY: ours, and no session of ours uses it.
        unsafe { (self.library.table.delete_graph)(self.raw.as_ptr()) };
    }
}

/// A buffer that a `MetaGraphDef` is written to.
struct MetaGraph<'l> {
    library: &'l Library,
    raw: NonNull<TF_Buffer>,
}

impl<'l> MetaGraph<'l> {
    fn new(library: &'l Library) -> Result<Self, Error> {
        // SAFETY: makes an empty buffer, which the wrapper owns.
        let raw = NonNull::new(unsafe { (library.table.new_buffer)() })
            .ok_or_else(|| Error::internal("TensorFlow gave no buffer"))?;
        Ok(MetaGraph { library, raw })
    }
}

impl Drop for MetaGraph<'_> {
    fn drop(&mut self) {
        // SAFETY: ours; frees its bytes, too.
        unsafe { (self.library.table.delete_buffer)(self.raw.as_ptr()) };
    }
}

fn count(length: usize) -> Result<c_int, Error> {
    c_int::try_from(length).map_err(|_| Error::internal("too many tensors"))
}
