//! One test per rule. As the driver is one per process, each test holds [`support::Session`].

mod arithmetic;
mod children;
mod context;
mod copy;
mod device;
mod event;
mod faults;
mod graph;
mod host;
mod ipc;
mod kernel;
mod memory;
mod support;
mod vmm;
