package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/goiser/goiser/conf"
	"github.com/goiser/goiser/iscsi/chap"
	"github.com/goiser/goiser/iscsi/initiator/dial"
)

// The environment variables that hold secrets, for those who want none in a command line or file.
const (
	secretEnv       = "ISER_CHAP_SECRET"
	mutualSecretEnv = "ISER_CHAP_MUTUAL_SECRET"
)

// authFlags say where the secrets of users in URLs are.
type authFlags struct {
	secretFile       string
	mutualUser       string
	mutualSecretFile string
	algorithms       []string
}

const authHelp = `
A URL's USER@ logs in by CHAP. The secret comes from --secret-file, else from ISER_CHAP_SECRET; USER%SECRET@, as
libiscsi has it, works too, but shows the secret to everybody on this host. With --mutual-user (or ?target_user=NAME)
the target must prove itself, by the secret in --mutual-secret-file, else in ISER_CHAP_MUTUAL_SECRET.`

// credentials are what a URL and the flags say of CHAP; nil: no user.
func (a *app) credentials(u *dial.URL) (*chap.Credentials, error) {
	c := &chap.Credentials{User: u.User, MutualUser: u.MutualUser}
	if c.MutualUser == "" {
		c.MutualUser = a.auth.mutualUser
	}
	if c.User == "" {
		if c.MutualUser != "" {
			return nil, usage(fmt.Errorf("%s: only a target to which we prove who we are proves itself; write USER@ before the host", u))
		}
		return nil, nil
	}
	var err error
	if c.Secret, err = a.secret(u.Secret, a.auth.secretFile, secretEnv); err != nil {
		return nil, usage(fmt.Errorf("%s: CHAP user %q: %w", u, c.User, err))
	}
	if c.MutualUser != "" {
		if c.MutualSecret, err = a.secret(u.MutualSecret, a.auth.mutualSecretFile, mutualSecretEnv); err != nil {
			return nil, usage(fmt.Errorf("%s: mutual CHAP user %q: %w", u, c.MutualUser, err))
		}
	}
	for _, name := range a.auth.algorithms {
		alg, err := chap.ParseAlgorithm(name)
		if err != nil {
			return nil, usage(fmt.Errorf("--chap: %w", err))
		}
		c.Algorithms = append(c.Algorithms, alg)
	}
	if err := c.Check(); err != nil {
		return nil, usage(fmt.Errorf("%s: %w", u, err))
	}
	return c, nil
}

// secret is the one of the URL, of a file or of the environment.
func (a *app) secret(inURL, file, env string) (chap.Secret, error) {
	switch value, set := os.LookupEnv(env); {
	case inURL != "":
		a.warnOnce("the secret in the URL is seen by everybody on this host; use --secret-file or " + secretEnv)
		return chap.NewSecret(inURL)
	case file != "":
		s, warning, err := conf.ReadSecret(file)
		if warning != "" {
			a.warnOnce(warning)
		}
		return s, err
	case set:
		return chap.NewSecret(value)
	}
	return chap.Secret{}, fmt.Errorf("no secret; give its file, or set %s", env)
}

// warnOnce tells a person what should be done better.
func (a *app) warnOnce(what string) {
	if !slices.Contains(a.warned, what) {
		a.warned = append(a.warned, what)
		a.note("warning: %s", what)
	}
}
