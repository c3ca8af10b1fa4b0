//! Model instances, as their backend sees them.

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use conch_abi as abi;
use conch_engine::Error;

use super::export;
use crate::boundary::{as_handle, borrow, write};

fn count(count: usize) -> Result<u32, Error> {
    u32::try_from(count).map_err(|_| Error::internal("more than 2^32 parts"))
}

fn out_of_bounds(index: u32, count: usize, parts: &str) -> Error {
    Error::invalid(format!(
        "out of bounds index {index}: instance is configured with {count} {parts}"
    ))
}

export! {
    fn TRITONBACKEND_ModelInstanceName(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        name: *mut *const c_char,
    ) {
        write(name, borrow(instance)?.c_name().as_ptr())
    }

    fn TRITONBACKEND_ModelInstanceKind(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        kind: *mut abi::TRITONSERVER_InstanceGroupKind,
    ) {
        write(kind, borrow(instance)?.kind())
    }

    fn TRITONBACKEND_ModelInstanceDeviceId(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        device_id: *mut i32,
    ) {
        write(device_id, borrow(instance)?.spec().device_id)
    }

    fn TRITONBACKEND_ModelInstanceHostPolicy(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        host_policy: *mut *mut abi::TRITONSERVER_Message,
    ) {
        // Lent: the backend does not delete it.
        write(host_policy, as_handle(borrow(instance)?.host_policy()))
    }

    fn TRITONBACKEND_ModelInstanceIsPassive(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        is_passive: *mut bool,
    ) {
        write(is_passive, borrow(instance)?.spec().is_passive)
    }

    fn TRITONBACKEND_ModelInstanceProfileCount(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        count: *mut u32,
    ) {
        write(count, self::count(borrow(instance)?.profiles().len())?)
    }

    fn TRITONBACKEND_ModelInstanceProfileName(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        index: u32,
        profile_name: *mut *const c_char,
    ) {
        write(profile_name, std::ptr::null())?;
        let profiles = borrow(instance)?.profiles();
        let profile = usize::try_from(index)
            .ok()
            .and_then(|index| profiles.get(index));
        let profile = profile.ok_or_else(|| out_of_bounds(index, profiles.len(), "profiles"))?;
        write(profile_name, profile.as_ptr())
    }

    fn TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        count: *mut u32,
    ) {
        write(
            count,
            self::count(borrow(instance)?.secondary_devices().len())?,
        )
    }

    fn TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        index: u32,
        kind: *mut *const c_char,
        id: *mut i64,
    ) {
        let devices = borrow(instance)?.secondary_devices();
        let device = usize::try_from(index)
            .ok()
            .and_then(|index| devices.get(index));
        let (device_kind, device_id) =
            device.ok_or_else(|| out_of_bounds(index, devices.len(), "secondary devices"))?;
        write(kind, device_kind.as_ptr())?;
        write(id, *device_id)
    }

    fn TRITONBACKEND_ModelInstanceModel(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        model: *mut *mut abi::TRITONBACKEND_Model,
    ) {
        write(model, as_handle(&**borrow(instance)?.model()))
    }

    fn TRITONBACKEND_ModelInstanceState(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        state: *mut *mut c_void,
    ) {
        write(state, borrow(instance)?.state().load(Ordering::Acquire))
    }

    fn TRITONBACKEND_ModelInstanceSetState(
        instance: *mut abi::TRITONBACKEND_ModelInstance,
        state: *mut c_void,
    ) {
        borrow(instance)?.state().store(state, Ordering::Release);
        Ok(())
    }
}
