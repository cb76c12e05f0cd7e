-- Health of an InferencePipeline for Argo CD (resource.customizations.health.tritonpipelines.io_InferencePipeline).
--
-- Healthy: the latest spec is served by every pod. Suspended: pods are at 0 because the spec says so.
-- Degraded: only a change of the spec helps (Stalled), whether or not an older revision still serves.
-- Progressing: everything else. A condition that speaks of an older generation says nothing about this one.
local hs = { status = "Progressing", message = "waiting for the operator to look at this generation" }

local status = obj.status
if status == nil or status.conditions == nil then
  return hs
end

local generation = obj.metadata ~= nil and obj.metadata.generation or nil
local found = {}
for _, condition in ipairs(status.conditions) do
  local observed = condition.observedGeneration
  if generation == nil or observed == nil or observed == generation then
    found[condition.type] = condition
  end
end

local function is(type, value)
  return found[type] ~= nil and found[type].status == value
end

local function text(condition)
  local reason = condition.reason or ""
  local message = condition.message or ""
  if reason ~= "" and message ~= "" then
    return reason .. ": " .. message
  end
  return reason .. message
end

if is("Stalled", "True") then
  hs.status = "Degraded"
  hs.message = text(found.Stalled)
elseif is("Reconciling", "True") then
  hs.status = "Progressing"
  hs.message = text(found.Reconciling)
elseif is("Ready", "True") then
  hs.status = found.Ready.reason == "Suspended" and "Suspended" or "Healthy"
  hs.message = text(found.Ready)
elseif found.Ready ~= nil then
  hs.status = "Progressing"
  hs.message = text(found.Ready)
end
return hs
