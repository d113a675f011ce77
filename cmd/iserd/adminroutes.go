package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/goiser/goiser/backstore"
	"github.com/goiser/goiser/cmd/admin"
	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/scsi"
)

// routes are the requests of the API.
func (a *adminServer) routes(mux *http.ServeMux) {
	get := func(path string, f func(*http.Request) (any, error)) { a.route(mux, "GET "+path, f) }
	get("/v1/version", func(*http.Request) (any, error) { return admin.Version{Version: version, API: admin.API}, nil })
	get("/v1/status", func(*http.Request) (any, error) { return a.m.snapshot(), nil })
	get("/v1/targets", func(*http.Request) (any, error) { return a.m.snapshot().Targets, nil })
	get("/v1/targets/{iqn}", func(r *http.Request) (any, error) { return a.target(r.PathValue("iqn")) })
	get("/v1/backstores", func(*http.Request) (any, error) { return a.m.snapshot().Backstores, nil })
	get("/v1/backstores/{name}/faults", a.faults)
	get("/v1/portals", func(*http.Request) (any, error) { return a.m.snapshot().Portals, nil })
	get("/v1/sessions", func(*http.Request) (any, error) { return a.m.snapshot().Sessions, nil })
	get("/v1/sessions/{id}", func(r *http.Request) (any, error) { return a.session(r.PathValue("id")) })
	get("/v1/targets/{iqn}/acl", func(r *http.Request) (any, error) {
		t, err := a.target(r.PathValue("iqn"))
		return admin.Acl{Target: t.Name, Allow: t.Allow}, err
	})
	a.targetRoutes(mux)
	a.storeRoutes(mux)
	a.accessRoutes(mux)
	a.configRoutes(mux)
	a.otherRoutes(mux)
}

// route answers a request with what f returns.
func (a *adminServer) route(mux *http.ServeMux, pattern string, f func(*http.Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		answer(w, http.StatusOK, v)
	})
}

// changeRoute answers a request by a change of one thing. There may be no body.
func changeRoute[T any](a *adminServer, mux *http.ServeMux, pattern string, f func(*http.Request, T) (edit, error)) {
	a.route(mux, pattern, func(r *http.Request) (any, error) {
		body, err := take[T](r)
		if err != nil {
			return nil, err
		}
		e, err := f(r, body)
		if err != nil {
			return nil, err
		}
		return a.m.change(r.Context(), optionsOf(r), true, e)
	})
}

// none is the body of requests that have none.
type none struct{}

func (a *adminServer) targetRoutes(mux *http.ServeMux) {
	changeRoute(a, mux, "PUT /v1/targets/{iqn}", func(r *http.Request, b admin.TargetRequest) (edit, error) {
		return addTargetEdit(r.PathValue("iqn"), b), nil
	})
	changeRoute(a, mux, "DELETE /v1/targets/{iqn}", func(r *http.Request, _ none) (edit, error) {
		return removeTargetEdit(r.PathValue("iqn")), nil
	})
	for word, disabled := range map[string]bool{"enable": false, "disable": true} {
		changeRoute(a, mux, "POST /v1/targets/{iqn}/"+word, func(r *http.Request, _ none) (edit, error) {
			return onTarget(r.PathValue("iqn"), func(_ *conf.Config, t *conf.Target) error { t.Disabled = disabled; return nil }), nil
		})
	}
	changeRoute(a, mux, "PUT /v1/targets/{iqn}/luns/{lun}", func(r *http.Request, b admin.LUNRequest) (edit, error) {
		n, err := lunNumber(r)
		return addLUNEdit(r.PathValue("iqn"), n, b), err
	})
	changeRoute(a, mux, "PATCH /v1/targets/{iqn}/luns/{lun}", func(r *http.Request, b admin.LUNSetRequest) (edit, error) {
		n, err := lunNumber(r)
		return setLUNEdit(r.PathValue("iqn"), n, b), err
	})
	changeRoute(a, mux, "DELETE /v1/targets/{iqn}/luns/{lun}", func(r *http.Request, _ none) (edit, error) {
		n, err := lunNumber(r)
		return removeLUNEdit(r.PathValue("iqn"), n), err
	})
}

func lunNumber(r *http.Request) (int, error) {
	n, err := strconv.Atoi(r.PathValue("lun"))
	if err != nil || n < 0 || n > scsi.MaxLUN {
		return 0, badRequest("LUN "+r.PathValue("lun"), "no such number", fmt.Sprintf("they go from 0 to %d", scsi.MaxLUN))
	}
	return n, nil
}

func (a *adminServer) storeRoutes(mux *http.ServeMux) {
	changeRoute(a, mux, "PUT /v1/backstores/{name}", func(r *http.Request, b admin.BackstoreRequest) (edit, error) {
		return addStoreEdit(r.PathValue("name"), b), nil
	})
	changeRoute(a, mux, "PATCH /v1/backstores/{name}", func(r *http.Request, b admin.BackstoreSetRequest) (edit, error) {
		return setStoreEdit(r.PathValue("name"), b), nil
	})
	changeRoute(a, mux, "DELETE /v1/backstores/{name}", func(r *http.Request, _ none) (edit, error) {
		return removeStoreEdit(r.PathValue("name")), nil
	})
	changeRoute(a, mux, "PUT /v1/portals/{address}", func(r *http.Request, b admin.PortalRequest) (edit, error) {
		return addPortalEdit(r.PathValue("address"), b), nil
	})
	changeRoute(a, mux, "DELETE /v1/portals/{address}", func(r *http.Request, _ none) (edit, error) {
		return removePortalEdit(r.PathValue("address")), nil
	})
}

func (a *adminServer) accessRoutes(mux *http.ServeMux) {
	changeRoute(a, mux, "PUT /v1/targets/{iqn}/acl/{who}", func(r *http.Request, _ none) (edit, error) {
		return allowEdit(r.PathValue("iqn"), r.PathValue("who")), nil
	})
	changeRoute(a, mux, "DELETE /v1/targets/{iqn}/acl/{who}", func(r *http.Request, _ none) (edit, error) {
		return denyEdit(r.PathValue("iqn"), r.PathValue("who")), nil
	})
	changeRoute(a, mux, "PUT /v1/targets/{iqn}/auth", func(r *http.Request, b admin.AuthRequest) (edit, error) {
		return authEdit(r.PathValue("iqn"), b.Initiator, &b), nil
	})
	changeRoute(a, mux, "DELETE /v1/targets/{iqn}/auth", func(r *http.Request, _ none) (edit, error) {
		return authEdit(r.PathValue("iqn"), r.URL.Query().Get("initiator"), nil), nil
	})
	changeRoute(a, mux, "PUT /v1/discovery/auth", func(_ *http.Request, b admin.AuthRequest) (edit, error) { return authEdit("", "", &b), nil })
	changeRoute(a, mux, "DELETE /v1/discovery/auth", func(*http.Request, none) (edit, error) { return authEdit("", "", nil), nil })
	a.route(mux, "DELETE /v1/sessions/{id}", func(r *http.Request) (any, error) {
		ses, err := a.session(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		step := admin.Step{Action: fmt.Sprintf("close session 0x%04x", ses.ID), Sessions: []string{ses.Initiator}, Closes: true}
		res := admin.Result{Steps: []admin.Step{step}}
		if optionsOf(r).dryRun {
			return res, nil
		}
		res.Applied = true
		return res, a.m.s.server.CloseSessions(r.Context(), ses.ID)
	})
}

func (a *adminServer) configRoutes(mux *http.ServeMux) {
	a.route(mux, "GET /v1/config", func(*http.Request) (any, error) { return a.m.text() })
	a.route(mux, "GET /v1/config/diff", func(*http.Request) (any, error) { return a.m.diff() })
	a.route(mux, "GET /v1/config/history", func(*http.Request) (any, error) { return a.m.history() })
	a.route(mux, "POST /v1/config/apply", func(r *http.Request) (any, error) {
		b, err := take[admin.ApplyRequest](r)
		if err != nil {
			return nil, err
		}
		return a.m.applyText(r.Context(), b.Name, []byte(b.YAML), optionsOf(r))
	})
	a.route(mux, "POST /v1/config/reload", func(r *http.Request) (any, error) { return a.m.reload(r.Context(), optionsOf(r)) })
	a.route(mux, "POST /v1/config/save", func(r *http.Request) (any, error) {
		if optionsOf(r).dryRun {
			return admin.Result{Steps: []admin.Step{}, Unsaved: a.m.isUnsaved()}, nil
		}
		if err := a.m.save(optionsOf(r).force); err != nil {
			return nil, err
		}
		return admin.Result{Steps: []admin.Step{}, Saved: true}, nil
	})
	a.route(mux, "POST /v1/config/rollback", func(r *http.Request) (any, error) {
		b, err := take[admin.RollbackRequest](r)
		if err != nil {
			return nil, err
		}
		return a.m.rollback(r.Context(), b.N, optionsOf(r))
	})
}

func (a *adminServer) otherRoutes(mux *http.ServeMux) {
	a.route(mux, "GET "+eventsPath, a.eventsSince)
	a.route(mux, "GET /v1/stats", func(*http.Request) (any, error) { return a.m.snapshot().Stats, nil })
	a.route(mux, "GET /v1/log", func(*http.Request) (any, error) { return a.logs.levels(), nil })
	a.route(mux, "PUT /v1/log", func(r *http.Request) (any, error) {
		b, err := take[admin.LogLevels](r)
		if err != nil {
			return nil, err
		}
		return a.logs.levels(), a.logs.set(b)
	})
	a.route(mux, "GET /v1/trace", func(*http.Request) (any, error) { return a.trace.state(), nil })
	a.route(mux, "POST /v1/trace/start", func(r *http.Request) (any, error) {
		b, err := take[admin.TraceRequest](r)
		if err != nil {
			return nil, err
		}
		return a.trace.start(a.m.s, b)
	})
	a.route(mux, "POST /v1/trace/stop", func(*http.Request) (any, error) { return a.trace.stop() })
}

func (a *adminServer) target(name string) (admin.Target, error) {
	list := a.m.snapshot().Targets
	i := slices.IndexFunc(list, func(t admin.Target) bool { return t.Name == name })
	if i < 0 {
		return admin.Target{Allow: []string{}}, notFound("target "+name, "iser target list shows those that there are")
	}
	return list[i], nil
}

func (a *adminServer) session(id string) (admin.Session, error) {
	n, err := strconv.ParseUint(id, 0, 16)
	if err != nil {
		return admin.Session{}, badRequest("session "+id, "no number", "give one as iser session list shows it, 0x0003 or 3")
	}
	for _, s := range a.m.snapshot().Sessions {
		if s.ID == uint16(n) {
			return s, nil
		}
	}
	return admin.Session{}, notFound("session "+id, "iser session list shows those that there are")
}

// eventsPath is where events are.
const eventsPath = "/v1/events"

// longPoll is how long a request for events may wait for one.
const longPoll = time.Minute

// eventsSince answers with what has happened after event `since`, and with wait=1 waits until something has.
func (a *adminServer) eventsSince(r *http.Request) (any, error) {
	q := r.URL.Query()
	since, err := strconv.ParseUint(cmp.Or(q.Get("since"), "0"), 10, 64)
	if err != nil {
		return nil, badRequest("events", fmt.Sprintf("since=%q is no number", q.Get("since")), "")
	}
	if q.Get("wait") != "1" {
		return a.ring.Since(since), nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), longPoll)
	defer cancel()
	return a.ring.Wait(ctx, since), nil
}

func (a *adminServer) faults(r *http.Request) (any, error) {
	name := r.PathValue("name")
	a.m.s.mu.Lock()
	st := a.m.s.stores[name]
	a.m.s.mu.Unlock()
	if st == nil {
		return nil, notFound("backstore "+name, "iser backstore list shows those that there are")
	}
	f, ok := st.Store.(*backstore.FaultStore)
	if !ok {
		return nil, badRequest("backstore "+name, "no store of type fault", "only those inject faults")
	}
	list, _ := f.Faults()
	out := []admin.Fault{}
	for _, v := range list {
		out = append(out, admin.Fault{
			Sequence: v.Sequence, Time: v.Time, Kind: fmt.Sprint(v.Kind), Op: v.Op, Offset: v.Offset, Length: v.Length, Rule: v.Rule,
		})
	}
	return out, nil
}
