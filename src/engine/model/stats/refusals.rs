//! Why requests that name a model are refused.

/// The `reason` label of `conch_inference_refused_total`. Each is a request that its client may
/// send again; what is wrong with a request itself is not counted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RefusalReason {
    /// The queue of the model, or of a priority level, has no room.
    QueueFull,
    /// The model has as many live requests as it may.
    ModelLimit,
    /// So has the server.
    ServerLimit,
    /// So has the client's tenant.
    TenantLimit,
    /// It waited longer than its queue policy lets it.
    Timeout,
    /// The model or the server is on its way out.
    Stopping,
}

impl RefusalReason {
    pub const ALL: [RefusalReason; 6] = [
        RefusalReason::QueueFull,
        RefusalReason::ModelLimit,
        RefusalReason::ServerLimit,
        RefusalReason::TenantLimit,
        RefusalReason::Timeout,
        RefusalReason::Stopping,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            RefusalReason::QueueFull => "queue_full",
            RefusalReason::ModelLimit => "model_limit",
            RefusalReason::ServerLimit => "server_limit",
            RefusalReason::TenantLimit => "tenant_limit",
            RefusalReason::Timeout => "timeout",
            RefusalReason::Stopping => "stopping",
        }
    }
}
