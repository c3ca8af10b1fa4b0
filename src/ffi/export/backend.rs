//! Backends and their attributes.

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use conch_abi as abi;
use conch_config::{InstanceKind, PreferredGroup};
use conch_engine::Error;

use super::export;
use super::memory_manager::MEMORY_MANAGER;
use crate::boundary::{as_handle, borrow, borrow_mut, slice, write};

export! {
    fn TRITONBACKEND_BackendName(
        backend: *mut abi::TRITONBACKEND_Backend,
        name: *mut *const c_char,
    ) {
        write(name, borrow(backend)?.c_name().as_ptr())
    }

    fn TRITONBACKEND_BackendConfig(
        backend: *mut abi::TRITONBACKEND_Backend,
        backend_config: *mut *mut abi::TRITONSERVER_Message,
    ) {
        // Lent: the backend does not delete it.
        write(backend_config, as_handle(borrow(backend)?.configuration()))
    }

    fn TRITONBACKEND_BackendExecutionPolicy(
        backend: *mut abi::TRITONBACKEND_Backend,
        policy: *mut abi::TRITONBACKEND_ExecutionPolicy,
    ) {
        write(policy, borrow(backend)?.policy().load(Ordering::Relaxed))
    }

    fn TRITONBACKEND_BackendSetExecutionPolicy(
        backend: *mut abi::TRITONBACKEND_Backend,
        policy: abi::TRITONBACKEND_ExecutionPolicy,
    ) {
        match policy {
            abi::TRITONBACKEND_EXECUTION_BLOCKING
            | abi::TRITONBACKEND_EXECUTION_DEVICE_BLOCKING => {
                borrow(backend)?.policy().store(policy, Ordering::Relaxed);
                Ok(())
            }
            other => Err(Error::invalid(format!("unknown execution policy {other}"))),
        }
    }

    fn TRITONBACKEND_BackendArtifacts(
        backend: *mut abi::TRITONBACKEND_Backend,
        artifact_type: *mut abi::TRITONBACKEND_ArtifactType,
        location: *mut *const c_char,
    ) {
        write(artifact_type, abi::TRITONBACKEND_ARTIFACT_FILESYSTEM)?;
        write(location, borrow(backend)?.c_directory().as_ptr())
    }

    fn TRITONBACKEND_BackendMemoryManager(
        backend: *mut abi::TRITONBACKEND_Backend,
        manager: *mut *mut abi::TRITONBACKEND_MemoryManager,
    ) {
        borrow(backend)?;
        write(manager, as_handle(&MEMORY_MANAGER))
    }

    fn TRITONBACKEND_BackendState(
        backend: *mut abi::TRITONBACKEND_Backend,
        state: *mut *mut c_void,
    ) {
        write(state, borrow(backend)?.state().load(Ordering::Acquire))
    }

    fn TRITONBACKEND_BackendSetState(backend: *mut abi::TRITONBACKEND_Backend, state: *mut c_void) {
        borrow(backend)?.state().store(state, Ordering::Release);
        Ok(())
    }

    fn TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        backend_attributes: *mut abi::TRITONBACKEND_BackendAttribute,
        kind: abi::TRITONSERVER_InstanceGroupKind,
        count: u64,
        device_ids: *const u64,
        id_count: u64,
    ) {
        let kind = match kind {
            abi::TRITONSERVER_INSTANCEGROUPKIND_AUTO => None,
            abi::TRITONSERVER_INSTANCEGROUPKIND_CPU => Some(InstanceKind::Cpu),
            abi::TRITONSERVER_INSTANCEGROUPKIND_GPU => Some(InstanceKind::Gpu),
            abi::TRITONSERVER_INSTANCEGROUPKIND_MODEL => Some(InstanceKind::Model),
            other => {
                return Err(Error::invalid(format!(
                    "unknown instance group kind {other}"
                )));
            }
        };
        let id_count =
            usize::try_from(id_count).map_err(|_| Error::invalid("too many device ids"))?;
        // A null list is none, whatever its count says: upstream reads it that way.
        let device_ids = if device_ids.is_null() {
            &[]
        } else {
            slice(device_ids, id_count, "device_ids")?
        };
        let group = PreferredGroup {
            kind,
            count,
            device_ids: device_ids.to_vec(),
        };
        borrow_mut(backend_attributes)?.preferred_groups.push(group);
        Ok(())
    }

    fn TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
        backend_attributes: *mut abi::TRITONBACKEND_BackendAttribute,
        enabled: bool,
    ) {
        borrow_mut(backend_attributes)?.allows_parallel_instances = enabled;
        Ok(())
    }
}
