//! Functions of the host on streams, and graphs.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use super::stream::Stream;
use crate::call::{call, give};
use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE};
use crate::driver::{Driver, lock};
use crate::faults;
use crate::graph::{Graph, Node};

/// A `CUgraph` or `CUgraphExec`: a number, not an address.
pub type GraphHandle = *mut c_void;

/// A `CUhostFn`.
type HostFunction = unsafe extern "C" fn(*mut c_void);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: Stream,
    function: Option<HostFunction>,
    data: *mut c_void,
) -> Code {
    call("cuLaunchHostFunc", |driver| {
        let function = function.ok_or(INVALID_VALUE)?;
        // SAFETY: the contract of the driver's function is the same.
        unsafe { call_host(driver, function, data.expose_provenance(), stream.addr()) }
    })
}

/// # Safety
/// The function may be called with `data` until the stream is done with it, and again whenever a
/// graph repeats what was captured.
unsafe fn call_host(
    driver: &'static Driver,
    function: HostFunction,
    data: usize,
    stream: usize,
) -> Result<(), Code> {
    let stream = driver.stream(stream)?;
    // SAFETY: by this function's contract.
    let again = move |stream| unsafe { call_host(driver, function, data, stream) };
    if stream.capture.take(|| again) {
        return Ok(());
    }
    stream.enqueue(Box::new(move || {
        faults::pass("host_function").map_or(Ok(()), Err)?;
        // SAFETY: by this function's contract.
        unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
        Ok(())
    }));
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Stream, mode: c_uint) -> Code {
    call("cuStreamBeginCapture_v2", |driver| {
        let handle = stream.addr();
        // The default stream cannot capture.
        if handle <= 2 || mode > 2 {
            return Err(INVALID_VALUE);
        }
        driver.stream(handle)?.capture.begin()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Stream, graph: *mut GraphHandle) -> Code {
    call("cuStreamEndCapture", |driver| {
        let ended = driver.stream(stream.addr())?.capture.end();
        let ended = ended.map(|nodes| insert(driver, nodes, false));
        // SAFETY: the caller passes a place for the result.
        unsafe { give(graph, ended.unwrap_or(std::ptr::null_mut())) }?;
        ended.map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Stream, status: *mut c_int) -> Code {
    call("cuStreamIsCapturing", |driver| {
        let is_active = driver.stream(stream.addr())?.capture.is_active();
        // SAFETY: the caller passes a place for the result.
        unsafe { give(status, c_int::from(is_active)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut GraphHandle,
    graph: GraphHandle,
    _flags: c_ulonglong,
) -> Code {
    call("cuGraphInstantiateWithFlags", |driver| {
        driver.current()?;
        let nodes = find(driver, graph, false)?.nodes.clone();
        // SAFETY: the caller passes a place for the result.
        unsafe { give(executable, insert(driver, nodes, true)) }
    })
}

/// # Safety
/// As for what was captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(executable: GraphHandle, stream: Stream) -> Code {
    call("cuGraphLaunch", |driver| {
        let graph = find(driver, executable, true)?;
        graph
            .nodes
            .iter()
            .try_for_each(|again| again(stream.addr()))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: GraphHandle) -> Code {
    call("cuGraphDestroy", |driver| remove(driver, graph, false))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: GraphHandle) -> Code {
    call("cuGraphExecDestroy", |driver| {
        remove(driver, executable, true)
    })
}

fn insert(driver: &Driver, nodes: Vec<Node>, is_executable: bool) -> GraphHandle {
    let handle = driver.next_handle();
    let graph = Graph {
        nodes,
        is_executable,
    };
    lock(&driver.graphs).insert(handle, Arc::new(graph));
    std::ptr::without_provenance_mut(handle)
}

fn find(driver: &Driver, handle: GraphHandle, is_executable: bool) -> Result<Arc<Graph>, Code> {
    let graphs = lock(&driver.graphs);
    let found = graphs.get(&handle.addr()).ok_or(INVALID_HANDLE)?;
    match found.is_executable == is_executable {
        true => Ok(Arc::clone(found)),
        false => Err(INVALID_HANDLE),
    }
}

fn remove(driver: &Driver, handle: GraphHandle, is_executable: bool) -> Result<(), Code> {
    find(driver, handle, is_executable)?;
    lock(&driver.graphs).remove(&handle.addr());
    Ok(())
}
