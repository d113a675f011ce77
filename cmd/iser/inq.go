package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/goiser/goiser/iscsi"
	"github.com/goiser/goiser/iscsi/initiator"
	"github.com/spf13/cobra"
)

// An inquiry is standard INQUIRY data (SPC-4, 6.6.2) or a VPD page as it came.
type inquiry struct {
	Vendor   string `json:"vendor,omitempty"`
	Product  string `json:"product,omitempty"`
	Revision string `json:"revision,omitempty"`
	Type     int    `json:"device_type"`
	Version  int    `json:"version,omitempty"`
	Page     *uint8 `json:"page,omitempty"`
	Serial   string `json:"serial,omitempty"`
	Hex      string `json:"hex"`
}

func (q inquiry) String() string {
	return strings.TrimSpace(q.Vendor + " " + q.Product + " " + q.Revision)
}

func parseInquiry(b []byte) inquiry {
	q := inquiry{Hex: hex.EncodeToString(b)}
	if len(b) >= 36 {
		q.Type, q.Version = int(b[0]&0x1f), int(b[2])
		q.Vendor, q.Product, q.Revision = field(b[8:16]), field(b[16:32]), field(b[32:36])
	}
	return q
}

func field(b []byte) string { return strings.TrimSpace(string(b)) }

func (a *app) inqCmd() *cobra.Command {
	page := vpdPage(-1)
	c := &cobra.Command{
		Use:   "inq URL",
		Short: "Show INQUIRY data or a vital product data page",
		Long:  "Sends INQUIRY to the logical unit and shows the answer in words and in hex.\n" + urlHelp,
		Args:  exactArgs(1, "one URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := parseURL(args[0])
			if err != nil {
				return err
			}
			s, err := a.session(cmd.Context(), &u)
			if err != nil {
				return err
			}
			defer s.Close()
			q, err := queryInquiry(cmd.Context(), s, iscsi.LUNFromNumber(max(u.LUN, 0)), int(page))
			if err != nil {
				return fmt.Errorf("%s: INQUIRY: %w", u, err)
			}
			if a.json() {
				return a.printJSON(q)
			}
			return a.printInquiry(q)
		},
	}
	c.Flags().Var(&page, "vpd", "vital product data page in hex, for example 83 or 0x83")
	return c
}

// A vpdPage is a page code on the command line, in hex as the standards and everybody write them; -1: none.
type vpdPage int

func (p *vpdPage) String() string {
	if *p < 0 {
		return ""
	}
	return fmt.Sprintf("%#02x", int(*p))
}

func (*vpdPage) Type() string { return "page" }

func (p *vpdPage) Set(s string) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(s), "0x"), 16, 8)
	if err != nil {
		return errors.New("want a page from 0 to ff, in hex")
	}
	*p = vpdPage(n)
	return nil
}

func queryInquiry(ctx context.Context, s *initiator.Session, lun iscsi.LUN, page int) (inquiry, error) {
	if page < 0 {
		b, err := s.Inquiry(ctx, lun, false, 0)
		return parseInquiry(b), err
	}
	p := uint8(page)
	b, err := s.Inquiry(ctx, lun, true, p)
	q := inquiry{Page: &p, Hex: hex.EncodeToString(b)}
	if len(b) >= 4 {
		q.Type = int(b[0] & 0x1f)
		if p == 0x80 {
			q.Serial = field(b[4:])
		}
	}
	return q, err
}

func (a *app) printInquiry(q inquiry) error {
	if q.Page == nil {
		fmt.Fprintf(a.out, "vendor    %s\nproduct   %s\nrevision  %s\ntype      %d\nversion   %d\n",
			q.Vendor, q.Product, q.Revision, q.Type, q.Version)
	}
	if q.Serial != "" {
		fmt.Fprintf(a.out, "serial    %s\n", q.Serial)
	}
	raw, err := hex.DecodeString(q.Hex)
	if err != nil {
		return err
	}
	fmt.Fprint(a.out, hex.Dump(raw))
	return nil
}
