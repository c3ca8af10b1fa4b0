//! One test per rule. As the driver is one per process, each test holds [`support::Session`].

mod children;
mod context;
mod copy;
mod device;
mod event;
mod faults;
mod host;
mod ipc;
mod memory;
mod support;
mod vmm;
