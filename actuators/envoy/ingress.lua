-- The proxy marks facts of each request: an expired lease, the end of its answer, a model that is unknown there.
-- Bodies are scanned chunk by chunk in passing; nothing is buffered.

local NAMESPACE = "flettner"
local TAIL = 64 -- bytes kept of the chunk before, longer than any pattern below
local HEAD = 512 -- bytes of an error that are read: enough for a name of a usual length
local byte, find, sub = string.byte, string.find, string.sub
local SLASH = byte("/")

local function note(handle, key, value)
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, key, value)
end

local function spend_lease(handle)
  local route = handle:metadata()
  local expires_ms = route:get("lease_expires_ms")
  if expires_ms == nil then
    return
  end
  local left_ms = expires_ms - handle:timestamp()
  -- more time left than the lease had: the clock was set back, which must not extend the lease
  if left_ms <= 0 or left_ms > route:get("lease_ms") + 1000 then
    note(handle, "lease", "expired")
    handle:clearRouteCache()
  end
end

local function holds(handle, media_type)
  return find(handle:headers():get("content-type") or "", media_type, 1, true) ~= nil
end

-- The path as the server reads it: without the query, with escapes decoded, without slashes at its end.
local function decode(path)
  local last = (find(path, "?", 1, true) or #path + 1) - 1
  local decoded = sub(path, 1, last):gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
  last = #decoded
  while byte(decoded, last) == SLASH do
    last = last - 1
  end
  return sub(decoded, 1, last)
end

-- Whether the path ends with one of `CLOSED`, names of one or two segments: it may be below any root path. A last
-- segment "*" stands for any. Walks from the end, byte by byte: a pattern, such as "[^/]*$", takes quadratic time.
local function is_closed(path)
  local decoded = decode(path)
  local last = nil -- the slash before the last segment
  for at = #decoded, 1, -1 do
    if byte(decoded, at) == SLASH then
      if CLOSED[sub(decoded, at + 1)] then
        return true
      end
      if last ~= nil then
        return CLOSED[sub(decoded, at + 1, last) .. "*"] ~= nil
      end
      last = at
    end
  end
  return false
end

local function refuse(handle, status, detail)
  handle:respond({[":status"] = status, ["content-type"] = "application/json"}, '{"detail":"' .. detail .. '"}')
end

function envoy_on_request(handle)
  local path = handle:headers():get(":path") or ""
  if #path > LONGEST_PATH then
    return refuse(handle, "414", "URI Too Long")
  end
  if is_closed(path) then
    return refuse(handle, "404", "Not Found")
  end
  spend_lease(handle)
  note_client(handle)
  if not holds(handle, "json") then
    return
  end
  local tail = ""
  for chunk in handle:bodyChunks() do
    local text = tail .. chunk:getBytes(0, chunk:length())
    if find(text, '"stream"', 1, true) and find(text, '"stream"%s*:%s*true') then
      note(handle, "stream", true)
      return
    end
    tail = sub(text, -TAIL)
  end
end

-- Server-sent events in `text` that were not complete in its first `known` bytes.
local function count_events(text, known)
  local events = 0
  local at = find(text, "\ndata:", known > 4 and known - 4 or 1, true)
  while at do
    events = events + 1
    at = find(text, "\ndata:", at + 6, true)
  end
  return events
end

-- The model that vLLM says it does not serve. Its message is at the beginning of the answer, and repeats what the
-- client asked for: only the name at the message's own beginning counts.
local function note_unknown_model(handle)
  for chunk in handle:bodyChunks() do
    local text = chunk:getBytes(0, math.min(chunk:length(), HEAD))
    local name = string.match(text, '"message"%s*:%s*"The model `([!-_a-~]+)` does not exist')
    if name ~= nil then
      note(handle, "unknown_model", name)
    end
    return
  end
end

function envoy_on_response(handle)
  local status = handle:headers():get(":status")
  if status == "404" and holds(handle, "json") then
    return note_unknown_model(handle)
  end
  if status ~= "200" then
    return
  end
  local events = holds(handle, "text/event-stream")
  if not events and not holds(handle, "json") then
    return
  end
  local tokens, done = 0, false
  local tail = "\n"
  for chunk in handle:bodyChunks() do
    local text = tail .. chunk:getBytes(0, chunk:length())
    if events then
      tokens = tokens + count_events(text, #tail)
      if find(text, '"error"', 1, true) and (find(text, '\ndata:%s*{%s*"error"') or find(text, '\ndata:%s*{%s*"object"%s*:%s*"error"')) then
        note(handle, "error", true)
      end
      if not done and find(text, "[DONE]", 1, true) and find(text, "\ndata:%s*%[DONE%]") then
        done = true -- set at once: clients hang up without waiting for the end of the body
        note(handle, "done", true)
        note(handle, "tokens", tokens - 1)
      end
    end
    if find(text, '"abort"', 1, true) and find(text, '"finish_reason"%s*:%s*"abort"') then
      note(handle, "aborted", true)
    end
    tail = sub(text, -TAIL)
  end
  if events then
    note(handle, "events", true)
    if not done then
      note(handle, "tokens", tokens)
    end
  end
end
